"""A run's row: who may see it, who holds it, and what people see of it."""

from __future__ import annotations

import copy
from typing import Final, Self

from sqlalchemy.orm import Session

from triforge.access.callers import caller
from triforge.errors import NotFoundError
from triforge.store.database import Database
from triforge.store.tables import RunRow
from triforge.types import RunState

ORCHESTRATOR: Final = "orchestrator"  # among the notes of a run: the token of whoever took it last


class Superseded(Exception):  # noqa: N818 (a signal, not a failure)
    """Another orchestrator has taken the run; this one has nothing to say about it any more."""


class RunRows:
    """The rows of runs, as one orchestrator or anybody reaches them.

    Args:
        database: opened, its schema at head.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._holder = ""

    def held_by(self, token: str) -> Self:
        """This store for one orchestrator: once another one has taken a run, its status and all writes raise `Superseded`.

        Whose run it is says the database, in the same transaction as the write. An orchestrator that stood still for an hour
        and believes in its lease can therefore do no harm here.
        """
        held = copy.copy(self)
        held._holder = token
        return held

    def _guard(self, row: RunRow) -> RunRow:
        if self._holder and row.state.get(ORCHESTRATOR) != self._holder:
            raise Superseded(row.id)
        return row


def hold(session: Session, run_id: str) -> RunRow:
    """The run, held until the end of the transaction: whoever moves it takes turns. SQLite's writers do so anyway."""
    return row_of(session, run_id, hold=True)


def row_of(session: Session, run_id: str, *, hold: bool = False) -> RunRow:
    """The run, if the caller may see it.

    Raises:
        NotFoundError: there is none that the caller may see.
    """
    row = session.get(RunRow, run_id, with_for_update=hold or None)
    if row is None or not caller().sees(row.tenant):
        raise NotFoundError(f"run {run_id!r} does not exist; GET /v1/runs lists all")
    return row


def shown(row: RunRow) -> RunState:
    """The run as the API shows it."""
    return RunState(
        id=row.id, name=row.name, pool_id=row.pool_id, status=row.status,
        step=row.step, steps=int(row.config.get("run", {}).get("steps", 0)), policy_version=row.policy_version,
        reward_version=row.reward_version, created_at=row.created_at, updated_at=row.updated_at, reason=row.reason,
        config=row.config, tenant=row.tenant,
    )  # fmt: skip
