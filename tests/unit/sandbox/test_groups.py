"""Control groups of version 2, where this process may make them: the kernel counts and bounds a run."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from triforge.sandbox import groups
from triforge.sandbox.client import Sandbox
from triforge.sandbox.groups import NAME, Group
from triforge.sandbox.limits import MIB, Limits

LIMITS = Limits(memory_bytes=64 * MIB, file_bytes=4096)
HELD = 96 * MIB


@pytest.fixture(scope="module")
def folder() -> Path:
    home, _ = groups.home()
    if home is None:
        pytest.skip("no control group of version 2 can be made: run as root, or delegate one")
    return home


@pytest.fixture
def group(folder: Path) -> Iterator[Group]:
    made = Group(folder / f"{NAME}-{os.getpid()}-1", asdict(LIMITS))
    yield made
    until(made.removed)


def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    given_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < given_up
        time.sleep(0.001)


def inside(group: Group, work: Callable[[], None]) -> int:
    """Return the wait status of a process in the group that does some work."""
    child = os.fork()
    if child == 0:
        try:
            (group.folder / "cgroup.procs").write_text("0")
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def burn() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(4):
        if os.fork() == 0:
            while time.process_time() < 0.1:
                pass
            os._exit(0)
        time.sleep(0.15)


def hide() -> None:
    pages = mmap.mmap(-1, HELD)
    for start in range(0, HELD, MIB):
        pages[start : start + MIB] = bytes(MIB)
        pages.madvise(mmap.MADV_DONTNEED)
    pages.close()


def test_processor_time_of_children_that_are_never_waited_for_is_counted(group: Group) -> None:
    assert group.used() == 0.0
    assert inside(group, burn) == 0
    until(lambda: group.used() >= 0.4)  # the last may still be at it
    assert not group.out_of_memory()


def test_memory_that_is_no_longer_mapped_is_bounded(group: Group) -> None:
    if not group.bounds_memory:
        pytest.skip("the controller memory is not in the hierarchy of version 2 here")
    assert inside(group, hide) == signal.SIGKILL
    assert group.out_of_memory()


def test_a_run_is_in_a_group_that_goes_with_it(sandbox: Sandbox, folder: Path) -> None:
    assert sandbox.run_blocking("print(1)").ok
    assert sandbox._runner is not None
    mine = f"{NAME}-{sandbox._runner._process.pid}-*"
    until(lambda: not list(folder.glob(mine)))  # the first run's group is removed after its answer
    sleep = threading.Thread(
        target=sandbox.run_blocking, args=("import time; time.sleep(60)", "", Limits(wall_s=2.0))
    )
    sleep.start()
    until(lambda: any(one.read_text() for one in folder.glob(f"{mine}/cgroup.procs")))
    sleep.join()
    until(lambda: not list(folder.glob(mine)))


def test_groups_of_runners_that_were_killed_are_removed(folder: Path) -> None:
    left, kept = folder / f"{NAME}-{2**22 + 1}-1", folder / f"{NAME}-{os.getpid()}-2"
    left.mkdir()
    kept.mkdir()
    groups.sweep(folder)
    assert not left.exists()
    kept.rmdir()


def test_a_group_that_was_removed_from_outside_counts_nothing(folder: Path) -> None:
    gone = Group(folder / f"{NAME}-{os.getpid()}-3", asdict(LIMITS))
    gone.folder.rmdir()
    assert gone.used() == 0.0
    assert not gone.out_of_memory()
    assert gone.removed()
