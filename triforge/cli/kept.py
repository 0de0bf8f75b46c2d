"""Pools and runs of a deployment that does not run, read from its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from triforge.cli.deployment import stores
from triforge.environments.registry import traits
from triforge.errors import NotFoundError
from triforge.store.database import Database
from triforge.store.tables import PoolRow, RunRow, TaskRow
from triforge.types import PoolState, Task


def find_pool(state: Path, pool: str) -> tuple[PoolState, Task] | None:
    """Return a pool by id or name, and a task; None if several tenants have it or the schema is older, NotFoundError if it is missing."""
    missing = f"pool {pool!r} does not exist in {state}; without --pool the command makes one"
    with _rows(state, missing) as session:
        if session is None:
            return None
        named = or_(PoolRow.id == pool, PoolRow.name == pool)
        rows = session.scalars(select(PoolRow).where(named)).all()
        if not rows:
            raise NotFoundError(missing)
        if len(rows) > 1:
            return None
        row = rows[0]
        tasks: dict[Any, dict[str, int]] = {"train": {}, "heldout": {}}
        counts = select(TaskRow.split, TaskRow.state, func.count()).where(TaskRow.pool_id == row.id)
        for split, status, count in session.execute(counts.group_by(TaskRow.split, TaskRow.state)):
            tasks[split][status] = count
        first = session.scalars(select(TaskRow).where(TaskRow.pool_id == row.id).limit(1)).one()
        task = Task(
            id=first.id, pool_id=row.id, slot=first.slot, family=row.family, instruction=first.instruction, params=first.params
        )  # fmt: skip
        found = PoolState(
            id=row.id, name=row.name, environment=row.family, options=row.options, created_at=row.created_at, tasks=tasks,
            proposals={}, **traits(row.family),
        )  # fmt: skip
        return found, task


def demand_run(state: Path, run: str) -> None:
    """Raise NotFoundError for a run that the deployment does not have."""
    missing = f"run {run!r} does not exist in {state}; without --resume the command begins one"
    with _rows(state, missing) as session:
        if session is not None and session.get(RunRow, run) is None:
            raise NotFoundError(missing)


@contextmanager
def _rows(state: Path, missing: str) -> Iterator[Session | None]:
    """Open the database; None if its schema is older than this version's, NotFoundError if there is none."""
    with closing(Database(stores(state).database_url)) as database:
        revision, head = database.schema()
        if revision is None:
            raise NotFoundError(missing)
        with database.read() as session:
            yield session if revision == head else None
