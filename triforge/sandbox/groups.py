"""Control groups of Linux, version 2, one a run: the kernel then counts and bounds a run as a whole.

Root can make groups, and other users can below a group that was delegated to them (systemd: `Delegate=yes`). Without the
controllers `memory` and `pids` a group still counts processor time, and the runner adds up memory itself. Standard library
only, as in runner.py.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

NAME: Final = "triforge"
CONTROLLERS: Final = ("memory", "pids", "cpu")
CLONE3: Final = 435  # on every machine
INTO_CGROUP: Final = 0x200000000
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
        """Fork this process of one thread into the group; see `os.fork`.

        Python has no such call, and moving a process into its group afterwards takes 10 ms and more.

        Raises:
            OSError: no further process can be started, or none in that group.
        """
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        words = struct.pack("11Q", INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, folder)
        try:
            pid: int = ctypes.PyDLL(None, use_errno=True).syscall(CLONE3, words, len(words))
        finally:
            os.close(folder)
        if pid < 0:
            raise OSError(ctypes.get_errno(), "cannot start a process in a control group")
        return pid

    def used(self) -> float:
        """Return the processor seconds of all its processes, dead or alive, waited for or not."""
        return self._count("cpu.stat", "usage_usec") / 1e6

    def out_of_memory(self) -> bool:
        """Return whether the kernel ended it for its memory."""
        return self.bounds_memory and self._count("memory.events", "oom_kill") > 0

    def removed(self) -> bool:
        """Remove it; return False while the kernel is not done with its last process."""
        try:
            self.folder.rmdir()
        except OSError:
            return not self.folder.exists()
        return True

    def _count(self, name: str, key: str) -> int:
        with suppress(OSError):  # the group was removed from outside
            rows = map(str.split, Path(self.folder, name).read_text().splitlines())
            return next(int(value) for word, value in rows if word == key)
        return 0


def home() -> tuple[Path | None, str]:
    """Return the group below which runs have theirs, None where this process may make none, and what groups bound there.

    It is the nearest group, from our own upwards, whose children bound memory, else the nearest whose children only count.
    """
    counting = None
    for folder in _upwards():
        group = _tried(folder)
        if group is not None and group.bounds_memory:
            return folder, "processor time and memory"
        counting = counting or (folder if group else None)
    return counting, "processor time"


def sweep(folder: Path) -> None:
    """Remove the groups of runners that were killed."""
    for left in folder.glob(f"{NAME}-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            with suppress(OSError):
                left.rmdir()


def _upwards() -> list[Path]:
    """Return our own group and those above it, as far as they can be seen here."""
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
    """Return a group below a folder, removed again; None when none can be made or no process started in it."""
    small = {"memory_bytes": 2**26, "file_bytes": 0, "processes": 4}
    group = None
    try:
        _enable(folder)
        group = Group(folder / f"{NAME}-{os.getpid()}-0", small)
        child = group.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    except OSError:
        if group is not None:
            group.removed()
        return None
    deadline = time.monotonic() + _GONE_S
    while not group.removed() and time.monotonic() < deadline:
        time.sleep(0.001)
    return group


def _enable(folder: Path) -> None:
    """Have child groups bound memory, processes and processor time, unless their controllers are chosen already."""
    control = folder / "cgroup.subtree_control"
    if not control.read_text().split():
        for name in CONTROLLERS:
            with suppress(
                OSError
            ):  # no such controller here, or the group has processes of its own
                control.write_text(f"+{name}")
