"""Record of a run: SQL rows, the Parquet record, weight folders, keys in Valkey. It is only read, and no log is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from chaos.broker import Broker
from chaos.facts import files_of, rows_of
from triforge.store.tables import RunRow

Row = dict[str, Any]
_JSON = {"config", "state", "metrics", "artifacts", "groups", "document"}


@dataclass(frozen=True, kw_only=True)
class Folder:
    """One weight version on the disk: what the manifest says, and what is there.

    Attributes:
        wrong: what is not as the manifest says.
        updates: of the optimiser from the run's beginning to this version, as its checkpoint counts them.
    """

    role: str
    version: int
    digest: str
    wrong: tuple[str, ...]
    step: int = -1
    updates: int = -1


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All of one run.

    Attributes:
        plans: of training, by round.
        measurements: what adaptation has counted.
        records: the Parquet record, each row with the step of its file as `file_step`.
        folders: its weight versions on the disk.
        batches: files of rows for the learners that are still there.
        keys: what names it in Valkey, with seconds left.
        jobs: how many of its jobs are in the queues or with workers.
        outcomes: how many groups adaptation has not dealt with.
    """

    run: Row
    steps: list[Row]
    weights: list[Row]
    plans: list[Row]
    measurements: list[Row]
    tasks: list[Row]
    proposals: list[Row]
    records: list[Row]
    folders: list[Folder]
    batches: list[str]
    keys: dict[str, int]
    jobs: int
    outcomes: int


class Store:
    """The deployment's SQLite file, opened for reading only.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query, JSON columns read."""
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=60)) as link:
            link.row_factory = sqlite3.Row
            return [_row(row) for row in link.execute(query, arguments)]

    def run(self, run_id: str) -> Row:
        return self.rows("SELECT * FROM runs WHERE id = ?", [run_id])[0]

    def counted(self, run_id: str) -> int:
        """Return the groups of a run that adaptation has counted."""
        return len(self.rows("SELECT group_id FROM measurements WHERE run_id = ?", [run_id]))

    def versions(self, run_id: str, role: str) -> int:
        """Return how many weight versions of a model are on record."""
        query = "SELECT version FROM weights WHERE run_id = ? AND role = ?"
        return len(self.rows(query, [run_id, role]))


def gather(store: Store, artifacts: Path, broker: Broker, run_id: str) -> Evidence:
    url = f"sqlite:///file:{store.path}?mode=ro&uri=true"
    with Session(create_engine(url, connect_args={"timeout": 60})) as session:
        found = rows_of(session, session.get_one(RunRow, run_id)) | files_of(artifacts, run_id)
    waiting = {
        "keys": broker.keys(run_id),
        "jobs": len(broker.jobs(run_id)),
        "outcomes": broker.outcomes(run_id),
    }
    return evidence_of(found | waiting)


def evidence_of(found: Row) -> Evidence:
    """Return the evidence of what `chaos.facts` has read of a run."""
    folders = [Folder(**{**folder, "wrong": tuple(folder["wrong"])}) for folder in found["folders"]]
    wanted = {field.name: found[field.name] for field in fields(Evidence)}
    return Evidence(**{**wanted, "folders": folders})


def _row(row: sqlite3.Row) -> Row:
    return {
        name: json.loads(row[name]) if name in _JSON and isinstance(row[name], str) else row[name]
        for name in row.keys()  # noqa: SIM118 (a row of sqlite3 iterates over its values)
    }
