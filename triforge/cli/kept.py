"""What a deployment that does not run has kept, read from its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from triforge.cli.deployment import kept
from triforge.environments.registry import traits
from triforge.errors import NotFoundError
from triforge.store.database import Database
from triforge.store.tables import PoolRow, RunRow, TaskRow
from triforge.types import PoolState


def find_pool(state: Path, pool: str) -> PoolState | None:
    """A pool that a deployment in `state` has kept which does not run; None if only a start can tell.

    Raises:
        NotFoundError: it has no such pool.
    """
    missing = f"pool {pool!r} does not exist in {state}; without --pool the command makes one"
    with _rows(state, missing) as session:
        if session is None:
            return None
        named = or_(PoolRow.id == pool, PoolRow.name == pool)
        found = session.scalars(select(PoolRow).where(named)).all()
        if not found:
            raise NotFoundError(missing)
        row, *others = found
        if others:  # of several tenants
            return None
        tasks: dict[Any, dict[str, int]] = {"train": {}, "heldout": {}}
        counts = select(TaskRow.split, TaskRow.state, func.count()).where(TaskRow.pool_id == row.id)
        for split, status, count in session.execute(counts.group_by(TaskRow.split, TaskRow.state)):
            tasks[split][status] = count
        return PoolState(
            id=row.id, name=row.name, environment=row.family, options=row.options, created_at=row.created_at, tasks=tasks,
            proposals={}, **traits(row.family),
        )  # fmt: skip


def demand_run(state: Path, run: str) -> None:
    """NotFoundError for a run that a deployment in `state` which does not run has not kept."""
    missing = f"run {run!r} does not exist in {state}; without --resume the command begins one"
    with _rows(state, missing) as session:
        if session is not None and session.get(RunRow, run) is None:
            raise NotFoundError(missing)


@contextmanager
def _rows(state: Path, missing: str) -> Iterator[Session | None]:
    """The database of a deployment that does not run; None if a start has to bring it up to date first.

    Raises:
        NotFoundError: there is none, which `missing` says.
    """
    with closing(Database(kept(state).database_url)) as database:
        revision, head = database.schema()
        if revision is None:
            raise NotFoundError(missing)
        with database.read() as session:
            yield session if revision == head else None
