"""Record of a run: SQL rows, the Parquet record, weight folders, keys in Valkey. Read only, and no log."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from chaos.broker import Broker

Row = dict[str, Any]
_JSON = {"config", "state", "metrics", "artifacts", "groups", "document"}
_COLUMNS = [
    "run_id", "step", "group_id", "trajectory_id", "step_index", "policy_versions", "outcome", "outcome_error", "score",
    "successes", "measured", "weight", "reason", "votes",
]  # fmt: skip


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
        self._path = path

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query, JSON columns read."""
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=60)) as link:
            link.row_factory = sqlite3.Row
            return [_row(row) for row in link.execute(query, arguments)]

    def run(self, run_id: str) -> Row:
        return self.rows("SELECT * FROM runs WHERE id = ?", [run_id])[0]

    def counted(self, run_id: str) -> int:
        """Return the groups of a run that adaptation has counted."""
        return len(self.rows("SELECT group_id FROM measurements WHERE run_id = ?", [run_id]))


def gather(store: Store, artifacts: Path, broker: Broker, run_id: str) -> Evidence:
    steps = store.rows("SELECT * FROM steps WHERE run_id = ? ORDER BY step", [run_id])
    batches = artifacts / "runs" / run_id / "batches"
    run = store.run(run_id)
    return Evidence(
        run=run,
        steps=steps,
        weights=store.rows(
            "SELECT * FROM weights WHERE run_id = ? ORDER BY role, version", [run_id]
        ),
        plans=store.rows(
            "SELECT * FROM plans WHERE run_id = ? AND kind = 'train' ORDER BY step", [run_id]
        ),
        measurements=store.rows("SELECT * FROM measurements WHERE run_id = ?", [run_id]),
        tasks=store.rows(
            "SELECT id, slot, version, split, state AS standing, position FROM tasks WHERE pool_id = ?",
            [run["pool_id"]],
        ),
        proposals=store.rows(
            "SELECT slot, state AS standing FROM proposals WHERE pool_id = ?", [run["pool_id"]]
        ),
        records=[record for step in steps for record in _records(step)],
        folders=_folders(artifacts, run_id),
        batches=sorted(p.name for p in batches.glob("*")) if batches.is_dir() else [],
        keys=broker.keys(run_id),
        jobs=len(broker.jobs(run_id)),
        outcomes=broker.outcomes(run_id),
    )


def _row(row: sqlite3.Row) -> Row:
    return {
        name: json.loads(row[name]) if name in _JSON and isinstance(row[name], str) else row[name]
        for name in row.keys()  # noqa: SIM118 (a row of sqlite3 iterates over its values)
    }


def _records(step: Row) -> list[Row]:
    uri = step["artifacts"].get("step_record")
    if uri is None:
        return []
    rows: list[Row] = pq.read_table(uri, columns=_COLUMNS).to_pylist()
    return [{**row, "file_step": step["step"]} for row in rows]


def _folders(artifacts: Path, run_id: str) -> list[Folder]:
    return [
        _folder(path, artifacts / "checkpoints" / run_id / role.name)
        for role in sorted((artifacts / "weights" / run_id).glob("*"))
        for path in sorted(role.glob("v*"))
        if path.is_dir()
    ]


def _folder(path: Path, checkpoints: Path) -> Folder:
    version = int(path.name.removeprefix("v"))
    manifest = path / "manifest.json"
    if not manifest.is_file():
        return Folder(role=path.parent.name, version=version, digest="", wrong=("no manifest",))
    document = json.loads(manifest.read_text())
    listed: dict[str, Row] = document["files"]
    there = {found.name for found in path.iterdir()} - {manifest.name}
    wrong = [f"{name} is not listed" for name in sorted(there - set(listed))]
    for name, manifest_row in listed.items():
        if name not in there:
            wrong.append(f"{name} is missing")
        elif _sha256(path / name) != manifest_row["sha256"]:
            wrong.append(f"{name} has another digest")
    if document.get("version") != version:
        wrong.append(f"the manifest says version {document.get('version')}")
    return Folder(
        role=path.parent.name, version=version, digest=_sha256(manifest), wrong=tuple(wrong),
        step=int(document.get("step", -1)),
        updates=max(map(_updates, checkpoints.glob(f"{path.name}*/state.json")), default=-1),
    )  # fmt: skip


def _updates(state: Path) -> int:
    """Return the optimiser updates that a checkpoint counts, skipped ones included."""
    counters = json.loads(state.read_text())["counters"]
    return int(counters["updates"]) + int(counters["skipped"])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
