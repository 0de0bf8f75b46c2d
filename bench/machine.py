"""The machine of a bench: what it is, processes on it, and what they use up."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _MIB
