"""A process that decides a proposal and kills itself at a given statement; run by test_killed.py, once for all statements.

For n = 0, 1, 2, ...: copies the database, forks a child that records the outcome which accepts the candidate, has the
kernel kill it before its n-th statement (COMMIT is one of them), and prints what a fresh reader finds. Ends with the
first child that came through.

Usage: python -m tests.unit.env_adapter.adaptation.kill_at_statement DATABASE OUTCOME.json
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import event, select

from services.env_adapter.adaptation.measurement import MeasurementStore
from services.env_adapter.adaptation.settings import RunOutcome
from triforge.store.database import Database
from triforge.store.tables import MeasurementRow, ProposalRow, TaskRow


def die_at(database: Database, number: int) -> None:
    """Have this process killed before statement `number`."""
    seen = 0

    def strike(*_: Any) -> None:
        nonlocal seen
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    event.listen(database.engine, "before_cursor_execute", strike)
    event.listen(database.engine, "commit", strike)


def found(path: Path) -> dict[str, Any]:
    """Read the database as a fresh process does."""
    database = Database(f"sqlite:///{path}")
    with database.read() as session:
        tasks = session.execute(
            select(TaskRow.version, TaskRow.state).order_by(TaskRow.slot, TaskRow.version)
        )
        proposal = session.scalars(select(ProposalRow)).one()
        state = {
            "tasks": [list(row) for row in tasks],
            "proposal": proposal.state,
            "reason": proposal.document["reason"],
            "pairs": len(proposal.document["candidate_counts"]),
            "measurements": len(session.scalars(select(MeasurementRow)).all()),
        }
    database.close()
    return state


def main() -> None:
    source, outcome = (
        Path(sys.argv[1]),
        RunOutcome.model_validate_json(Path(sys.argv[2]).read_text()),
    )
    for number in range(100):
        copy = source.with_name(f"killed-{number}.sqlite")
        shutil.copy(source, copy)
        child = os.fork()
        if child == 0:
            database = Database(f"sqlite:///{copy}")
            die_at(database, number)
            MeasurementStore(database).record(outcome)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = found(copy)
        database = Database(f"sqlite:///{copy}")
        MeasurementStore(database).record(outcome)  # delivered again
        database.close()
        print(json.dumps({"survived": status == 0, "killed": killed, "again": found(copy)}))  # noqa: T201
        if status == 0:
            return


if __name__ == "__main__":
    main()
