"""The run tables, where several may want to move a run at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import ORMExecuteState, Session

from services.trainer.runs.store import RunStore
from triforge.errors import ConflictError
from triforge.store.database import Database
from triforge.types import RunStep


@pytest.fixture
def store(database: Database) -> RunStore:
    return RunStore(database)


MOVES: dict[str, Callable[[RunStore, str], object]] = {
    "take": lambda store, run: store.take(run),
    "set_reason": lambda store, run: store.set_reason(run, "waiting"),
    "set_status": lambda store, run: store.set_status(run, "finished"),
    "request_stop": lambda store, run: store.request_stop(run),
    "begin": lambda store, run: store.begin(run, state={}, versions={"policy": 1, "reward": 1}),
    "note": lambda store, run: store.note(run, "window", {}),
    "add_weights": lambda store, run: store.add_weights(run, "policy", 1, "/w", ""),
    "commit_step": lambda store, run: store.commit_step(RunStep(
        run_id=run, step=0, at=0.0, policy_version=1, reward_version=1, metrics={}, artifacts={}
    )),
}  # fmt: skip


@pytest.mark.parametrize("move", MOVES)
def test_moving_a_run_locks_its_row(store: RunStore, move: str) -> None:
    run = store.create(name="r", pool_id="pool-1", config={})
    asked: list[str] = []

    def note(state: ORMExecuteState) -> None:
        statement: Any = state.statement
        asked.append(str(statement.compile(dialect=postgresql.dialect())))  # type: ignore[no-untyped-call]

    event.listen(Session, "do_orm_execute", note)
    try:
        MOVES[move](store, run.id)
    finally:
        event.remove(Session, "do_orm_execute", note)
    of_run = [statement for statement in asked if "FROM runs" in statement]
    assert of_run
    assert all("FOR UPDATE" in statement for statement in of_run)


def test_a_run_that_was_resumed_meanwhile_is_not_rolled_back(store: RunStore) -> None:
    run = store.create(name="r", pool_id="pool-1", config={})
    store.add_weights(run.id, "policy", 1, "/w", "")
    with pytest.raises(ConflictError, match="is queued"):
        store.roll_back(run.id, "policy", origin=1, new=2, uri="/w", digest="", notes={})
    assert store.newest_weights(run.id, "policy") == 1
