"""Creation of pools: once all rows are checked, they are stored in one transaction."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from services.env_adapter.pools.rows import pool_states, task_of
from triforge.access.callers import caller
from triforge.config import merge
from triforge.environments.criteria import shown_of
from triforge.environments.rows import Row
from triforge.environments.tasks import CheckedTasks, check_pool
from triforge.errors import ConflictError
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.store.database import Database
from triforge.store.tables import PoolRow, TaskRow
from triforge.types import Params, PoolRequest, PoolState, Split

FindFamily = Callable[[str], EnvironmentFamily]

_CHUNK: Final = 1_000  # rows of one INSERT


class PoolMaker:
    """Makes pools; `family` finds an environment family by name, or raises an InputError that names the known ones."""

    def __init__(self, database: Database, family: FindFamily) -> None:
        self._database = database
        self._family = family

    def create(
        self, head: PoolRequest, rows: Iterable[Row], *, key: str | None = None, digest: str = ""
    ) -> tuple[PoolState, bool]:
        """Make a pool of unchecked `rows` and of the tasks that `head.generate` asks for; return it and whether it is new.

        The same idempotency `key` and `digest` return the pool that they made the first time.

        Raises:
            InputError: the environment is unknown or rows are malformed; each is named, nothing was stored.
            ConflictError: the name is taken, or the key was used for another request.
        """
        made = self._repeated(head.name, key, digest)
        if made is not None:
            return made, False
        with CheckedTasks() as checked:
            check_pool(self._family(head.environment), head, rows, checked)
            try:
                return self._store(head, checked, key, digest), True
            except IntegrityError:  # another request made it in the meantime
                made = self._repeated(head.name, key, digest)
                assert made is not None
                return made, False

    def check(self, pool: PoolState, options: Params) -> PoolState:
        """Return the pool, with what judges may be shown of it, if its tasks can be played with its own options and these over them.

        Raises:
            InputError: the family is not known or may not be named, or it does not know an option.
            ConfigError: a package or program that the family needs is missing.
        """
        family, played = self._family(pool.environment), merge(pool.options, options)
        family.make(played)
        with self._database.read() as session:
            query = select(TaskRow).where(
                TaskRow.pool_id == pool.id, TaskRow.split == "train", TaskRow.version == 0
            )
            rows = session.scalars(query.order_by(TaskRow.position)).yield_per(100)
            tasks = (task_of(row, pool.environment) for row in rows)
            return pool.model_copy(update={"shown": shown_of(family, tasks, played)})

    def _repeated(self, name: str, key: str | None, digest: str) -> PoolState | None:
        """Return the pool that this request made before; raise ConflictError if the key or the name has another owner."""
        # The name comes first: a pool that is committed between the two queries is then found by its key.
        own = PoolRow.tenant == caller().tenant
        with self._database.read() as session:
            taken = session.scalar(select(PoolRow.id).where(PoolRow.name == name, own))
            query = select(PoolRow).where(PoolRow.idempotency_key == key, own)
            row = session.scalar(query) if key is not None else None
            if row is not None and row.request_digest == digest:
                return pool_states(session, [row])[0]
        if row is not None:
            raise ConflictError(
                f"Idempotency-Key {key!r} was used for another request (pool {row.name!r}); send a new key"
            )
        if taken:
            raise ConflictError(f"pool {name!r} exists already; choose another name")
        return None

    def _store(
        self, head: PoolRequest, checked: CheckedTasks, key: str | None, digest: str
    ) -> PoolState:
        with self._database.write() as session:
            pool = PoolRow(
                id=f"pool-{uuid.uuid4().hex[:12]}",
                tenant=caller().tenant,
                name=head.name,
                family=head.environment,
                options=head.options,
                idempotency_key=key,
                request_digest=digest,
                created_at=time.time(),
                state="active",
                approval=head.approval,
            )
            session.add(pool)
            session.flush()
            tasks = _task_rows(pool, checked)
            while chunk := list(islice(tasks, _CHUNK)):
                session.execute(insert(TaskRow), chunk)
            return pool_states(session, [pool])[0]


def _task_rows(
    pool: PoolRow, checked: Iterable[tuple[Split, TaskDraft]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the tasks' first versions."""
    stem = pool.id.removeprefix("pool-")
    positions: Counter[str] = Counter()
    for split, draft in checked:
        slot = f"t-{stem}-{split[0]}{positions[split]:06d}"
        yield {
            "id": slot,
            "pool_id": pool.id,
            "slot": slot,
            "version": 0,
            "parent_id": None,
            "split": split,
            "state": "active",
            "position": positions[split],
            "instruction": draft.instruction,
            "params": draft.params,
            "kind": draft.kind,
            "pinned": False,
            "created_at": pool.created_at,
        }
        positions[split] += 1
