"""The record of a test, written as it goes: what is on disk is never lost with the process that wrote it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class Record:
    """One test's file of JSON lines; each has `at` (UTC), `s` (seconds since the begin) and `kind`.

    Args:
        path: of the file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._began = time.monotonic()
        self._file = path.open("a", encoding="utf-8")

    def note(self, kind: str, **what: Any) -> None:
        """Write a line and see it to the disk."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"at": at, "s": round(time.monotonic() - self._began, 1), "kind": kind, **what}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def tell(self, text: str) -> None:
        """Print a line and note it."""
        sys.stdout.write(f"[{time.monotonic() - self._began:5.0f} s] {text}\n")
        sys.stdout.flush()
        self.note("line", text=text)

    def close(self) -> None:
        self._file.close()


def new_path(folder: Path) -> Path:
    """Where the record of a test that begins now goes."""
    return folder / "records" / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}.jsonl"


def newest(folder: Path) -> Path | None:
    return max((folder / "records").glob("*.jsonl"), default=None)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what was noted; a last line that was cut short is left out."""
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(text)
        except ValueError:
            return


def story(path: Path) -> dict[str, Any]:
    """Return the last note of each kind, and under `faults` the last one of each fault, in the order in which they struck."""
    found: dict[str, Any] = {}
    faults: dict[int, Mapping[str, Any]] = {}
    for line in lines(path):
        if line["kind"] == "fault":
            faults[line["number"]] = line["outcome"]
        else:
            found[line["kind"]] = line
    return found | {"faults": [faults[number] for number in sorted(faults)]}
