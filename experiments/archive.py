"""Runs on record in the repository, experiments/results/runs: a page can be made again of them, and none of them is run again.

A folder holds the runs of one experiment, a file of one line each, numbers of five digits, seconds left out; a measure of the
steps is a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.jobs import read

_DIGITS = 5


def unpack(record: Path | None, folder: Path) -> None:
    """Lay the runs on record, if there is one, into an experiment's folder of results, where they are not there yet."""
    for path in [] if record is None else (record / folder.name).glob("*.jsonl"):
        target = folder / path.name
        if not target.exists():
            run = json.loads(path.read_text(encoding="utf-8"))
            run["steps"] = _rows(run["steps"])
            folder.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(run) + "\n", encoding="utf-8")


def pack(files: Iterable[Path], record: Path | None) -> None:
    """Add finished runs to the record, if there is one; runs on record stay as they are."""
    if record is None:
        return
    for path in files:
        target = record / path.parent.name / path.name
        if path.is_file() and not target.exists():
            run = _short(read(path))
            run["steps"] = _columns(run["steps"])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(run, separators=(",", ":")) + "\n", encoding="utf-8")


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    length = max(map(len, columns.values()), default=0)
    return [{k: v[i] for k, v in columns.items() if v[i] is not None} for i in range(length)]


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items() if not k.startswith("seconds/")}
    if isinstance(value, list):
        return [_short(v) for v in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
