"""The record of a test, written to the disk after each note, so that an interrupted test leaves what it has found."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class Record:
    """One test's notes: the last note of each kind, and under `faults` the last one of each fault, in their order.

    Args:
        path: of the JSON file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.story: dict[str, Any] = {"faults": []}
        self._began = time.monotonic()

    def note(self, kind: str, **what: Any) -> None:
        """Keep a note and write the file."""
        self.story[kind] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **what}
        self._write()

    def fault(self, number: int, outcome: dict[str, Any]) -> None:
        """Keep what is known of a fault by now."""
        self.story["faults"][number:] = [outcome, *self.story["faults"][number + 1 :]]
        self._write()

    def tell(self, text: str) -> None:
        """Print a line with the seconds since the begin."""
        sys.stdout.write(f"[{time.monotonic() - self._began:5.0f} s] {text}\n")
        sys.stdout.flush()

    def _write(self) -> None:
        self.path.write_text(json.dumps(self.story, indent=1) + "\n", encoding="utf-8")
