"""The machine of a bench, processes on it and what they use up, and how figures are shown and kept."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20  # of a page


def machine() -> str:
    memory = _MIB * os.sysconf("SC_PHYS_PAGES") / 2**10
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}"


@contextlib.contextmanager
def process(
    *command: str, program: str = sys.executable, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([program, *command], env={**os.environ, **variables})
    try:
        yield started
    finally:
        started.terminate()
        started.wait(30)


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """One figure; `met` is None where no goal is set."""

    what: str
    measured: str
    wanted: str = ""
    met: bool | None = None


def show_rows(what: str, rows: Iterable[Row]) -> None:
    """Print figures next to their goals."""
    print(f"\n| {what} | measured | wanted | |\n|---|---|---|---|")
    for row in rows:
        met = "" if row.met is None else "met" if row.met else "missed"
        print(f"| {row.what} | {row.measured} | {row.wanted} | {met} |")


def keep(name: str, found: dict[str, Any]) -> None:
    """Write the figures of a bench to `var/bench/NAME.json`."""
    path = Path("var", "bench", f"{name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1))
