"""Control groups of Linux, version 2, one a run: the kernel then counts and bounds a run as a whole.

Groups can be made by root, and by others below a group that was delegated to them (systemd: `Delegate=yes`). Without the
controllers `memory` and `pids` a group still counts processor time, and the runner adds up memory itself.

Imports nothing but the standard library and kernel.py; see runner.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from triforge.sandbox.kernel import fork_into

NAME: Final = "triforge"
CONTROLLERS: Final = ("memory", "pids", "cpu")
_GONE_S: Final = 1.0


class Group:
    """One group with the bounds of a run, as far as its folder has them."""

    def __init__(self, folder: Path, limits: Mapping[str, Any]) -> None:
        folder.mkdir()
        self.folder = folder
        bounds = {
            "memory.max": limits["memory_bytes"] + limits["file_bytes"],
            "memory.swap.max": 0,
            "memory.oom.group": 1,  # a run that is out of memory ends whole
            "pids.max": limits["processes"] + 1,  # one for bubblewrap
            "cpu.max": "100000 100000",  # one processor
        }
        try:
            for name, value in bounds.items():
                if Path(folder, name).exists():
                    Path(folder, name).write_text(str(value))
        except OSError:
            folder.rmdir()
            raise
        self.bounds_memory = Path(folder, "memory.max").exists()

    def fork(self) -> int:
        """As `os.fork`, with the child in the group, and everything that it starts. Errors: see `kernel.fork_into`."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return fork_into(fd)
        finally:
            os.close(fd)

    def used(self) -> float:
        """Processor seconds of all its processes, dead or alive, waited for or not."""
        return self._count("cpu.stat", "usage_usec") / 1e6

    def out_of_memory(self) -> bool:
        """Whether the kernel ended it for its memory."""
        return self.bounds_memory and self._count("memory.events", "oom_kill") > 0

    def removed(self) -> bool:
        """Remove it; False as long as the kernel still has to do with its last process."""
        try:
            self.folder.rmdir()
        except OSError:
            return False
        return True

    def _count(self, name: str, key: str) -> int:
        with suppress(OSError):  # no process could enter it, and somebody has removed it
            rows = map(str.split, Path(self.folder, name).read_text().splitlines())
            return next(int(value) for found, value in rows if found == key)
        return 0


def home() -> tuple[Path | None, str]:
    """The group below which runs have theirs, None where this process may make none, and what groups there bound.

    It is the nearest from our own upwards whose groups bound memory, else the nearest whose groups only count.
    """
    counting = None
    for folder in _upwards():
        made = _tried(folder)
        if made is not None and made.bounds_memory:
            return folder, "processor time and memory"
        counting = counting or (folder if made else None)
    return counting, "processor time"


def sweep(folder: Path) -> None:
    """Remove the groups of runners that were killed."""
    for left in folder.glob(f"{NAME}-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            with suppress(OSError):
                left.rmdir()


def _upwards() -> list[Path]:
    """Our own group and those above it, as far as they can be seen here."""
    rows = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((row[3:] for row in rows if row.startswith("0::")), None)
    for row in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = row.partition(" - ")
        root, point = map(Path, fields.split()[3:5])
        if own is not None and source.startswith("cgroup2 ") and Path(own).is_relative_to(root):
            folder = point / Path(own).relative_to(root)
            return [one for one in (folder, *folder.parents) if one.is_relative_to(point)]
    return []


def _tried(folder: Path) -> Group | None:
    """A group below a folder, removed again; None when there can be none or no process can be started in it."""
    small = {"memory_bytes": 2**26, "file_bytes": 0, "processes": 4}
    try:
        _enable(folder)
        group = Group(folder / f"{NAME}-{os.getpid()}-0", small)
    except OSError:
        return None
    try:
        child = group.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    except OSError:
        group.removed()
        return None
    given_up = time.monotonic() + _GONE_S
    while not group.removed() and time.monotonic() < given_up:
        time.sleep(0.001)
    return group


def _enable(folder: Path) -> None:
    """Have its groups bound memory, processes and processor time, unless somebody has already said what they bound."""
    control = folder / "cgroup.subtree_control"
    if not control.read_text().split():
        for name in CONTROLLERS:
            with suppress(OSError):  # none of that name here, or the group has processes of its own
                control.write_text(f"+{name}")
