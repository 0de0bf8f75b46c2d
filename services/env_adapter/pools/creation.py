"""How pools are made: once all rows are known to be good they are stored, in one transaction."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from services.env_adapter.pools.requests import Change
from services.env_adapter.pools.rows import pool_states, record_change
from triforge.access.callers import caller
from triforge.config import merge
from triforge.environments.rows import Row
from triforge.environments.tasks import CheckedTasks, check_pool
from triforge.errors import ConflictError
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.store.database import Database
from triforge.store.tables import PoolRow, TaskRow
from triforge.types import Params, PoolRequest, PoolState, Split

FindFamily = Callable[[str], EnvironmentFamily]

_CHUNK = 1_000  # rows an INSERT


class PoolMaker:
    """Makes pools; `family` finds an environment family by name, or raises InputError naming the known ones."""

    def __init__(self, database: Database, family: FindFamily) -> None:
        self._database = database
        self._family = family

    def create(
        self, head: PoolRequest, rows: Iterable[Row], *, key: str | None = None, digest: str = ""
    ) -> tuple[PoolState, bool]:
        """Make a pool of `rows` and of what `head.generate` asks for; True when it is new.

        The rows are unchecked and read once. The same `key` and `digest` return the pool that they made the first time.

        Raises:
            InputError: the environment is unknown or rows are malformed; each is named, nothing was stored.
            ConflictError: the name is taken, or the key was used for another request.
        """
        found = self._repeated(head.name, key, digest)
        if found is not None:
            return found, False
        with CheckedTasks() as checked:
            check_pool(self._family(head.environment), head, rows, checked)
            try:
                return self._store(head, checked, key, digest), True
            except IntegrityError:  # somebody else made it while we checked the rows
                found = self._repeated(head.name, key, digest)
                assert found is not None
                return found, False

    def check(self, pool: PoolState, options: Params) -> PoolState:
        """The pool, if its tasks can be played here with its own options and these over them.

        Raises:
            InputError: the family is not known or may not be named, or it does not know an option.
            ConfigError: a package or program that the family needs is missing.
        """
        self._family(pool.environment).make(merge(pool.options, options))
        return pool

    def _repeated(self, name: str, key: str | None, digest: str) -> PoolState | None:
        """The pool that this very request made before; ConflictError if the key or the name belongs to another one."""
        # The name is looked up first: whoever commits between the two queries is then seen by the key, as the same request.
        own = PoolRow.tenant == caller().tenant
        with self._database.read() as session:
            taken = session.scalar(select(PoolRow.id).where(PoolRow.name == name, own))
            query = select(PoolRow).where(PoolRow.idempotency_key == key, own)
            found = session.scalar(query) if key is not None else None
            if found is not None and found.request_digest == digest:
                return pool_states(session, [found])[0]
        if found is not None:
            raise ConflictError(
                f"Idempotency-Key {key!r} was used for another request (pool {found.name!r}); send a new key"
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
            record_change(session, "pool.create", pool, Change(), **checked.splits)
            return pool_states(session, [pool])[0]


def _task_rows(
    pool: PoolRow, checked: Iterable[tuple[Split, TaskDraft]]
) -> Iterator[dict[str, Any]]:
    """The rows of the tasks' first versions."""
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
