"""Programs under a guard process: their whole family ends with them, with us, and with our violent death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from environments.gui import png
from environments.gui.processes import GuardedProcess
from triforge.errors import EnvError

# A program that leaves a grandchild behind in a session of its own, says so, and stays.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], start_new_session=True)
print("begun", child.pid, flush=True)
time.sleep(600)
"""
OWNER = """
import sys, time
from environments.gui.processes import GuardedProcess
kept = GuardedProcess([sys.executable, "-c", sys.argv[1], "{folder}"])
kept.read_line("begun", timeout_s=60)
print(kept.folder, flush=True)
time.sleep(600)
"""


def running(mark: str) -> list[int]:
    """Processes that have a text on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def expect_gone(folder: str) -> None:
    deadline = time.monotonic() + 60
    while running(folder) or Path(folder).exists():
        assert time.monotonic() < deadline, f"still there: {running(folder)}"
        time.sleep(0.02)


def kept() -> GuardedProcess:
    process = GuardedProcess([sys.executable, "-c", FAMILY, "{folder}"])
    process.read_line("begun", timeout_s=60)
    return process


def test_stopping_ends_grandchildren_in_sessions_of_their_own_and_the_folder() -> None:
    process = kept()
    folder = str(process.folder)
    deadline = time.monotonic() + 60
    while (
        len(running(folder)) < 3
    ):  # keeper, program, grandchild: one that has just begun may have no command line
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.stop()
    assert running(folder) == []
    assert not process.folder.exists()
    process.stop()  # idempotent


def test_a_program_that_ends_takes_its_orphans_along() -> None:
    process = kept()
    line = running(str(process.folder))
    program = next(pid for pid in line if b"begun" in Path(f"/proc/{pid}/cmdline").read_bytes()
                   and b"guard.py" not in Path(f"/proc/{pid}/cmdline").read_bytes())  # fmt: skip
    os.kill(program, signal.SIGKILL)
    expect_gone(str(process.folder))
    process.stop()


def test_our_own_violent_death_leaves_nothing_behind() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, FAMILY], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert owner.stdout is not None
    folder = owner.stdout.readline().strip()
    assert running(folder)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    expect_gone(folder)


def test_a_program_that_cannot_start_says_so() -> None:
    process = GuardedProcess(["/no/such/program"])
    with pytest.raises(EnvError, match="/no/such/program ended at its start"):
        process.read_line("ready", timeout_s=60)
    process.stop()
    assert not process.folder.exists()


def test_a_png_file_is_what_others_read() -> None:
    image = png.encode(3, 2, bytes(range(18)))
    assert png.size(image) == (3, 2)
    pillow = pytest.importorskip("PIL.Image", reason="pip install pillow")
    with pillow.open(__import__("io").BytesIO(image)) as read:
        assert (read.size, read.convert("RGB").tobytes()) == ((3, 2), bytes(range(18)))


def test_what_is_no_png_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not a PNG file"):
        png.size(b"GIF89a")
    with pytest.raises(ValueError, match="3x2 pixels have 18 bytes, given 5"):
        png.encode(3, 2, b"12345")
