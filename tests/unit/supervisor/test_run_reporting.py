"""A command whose lines are reported while it runs, and that ends with the process that started it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triforge.supervisor.process import run_reporting

ENDLESS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored by what runs in the background
PARENT = f"""
import sys
{HEARS}
from triforge.supervisor.process import run_reporting
run_reporting([sys.executable, "-c", {ENDLESS!r}], lambda line: print(line, flush=True), {{}})
"""

DEMO = f"""
import pathlib, tempfile
{HEARS}
from demo.warm_start import _start
_, child, _ = _start("serves", ["http.server", "0", "--bind", "127.0.0.1"], pathlib.Path(tempfile.mkdtemp()))
print(child.pid, flush=True)
child.wait()
"""


def test_lines_are_reported_and_errors_come_back() -> None:
    lines: list[str] = []
    code = "import os, sys; print(os.environ['GIVEN']); print('two'); sys.exit('bad')"
    ended = run_reporting([sys.executable, "-c", code], lines.append, {"GIVEN": "one"})
    assert (ended, lines) == ((1, "bad\n"), ["one", "two"])


@pytest.mark.parametrize("program", [PARENT, DEMO], ids=["run_reporting", "demo"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_it_does_not_outlive_its_parent(number: signal.Signals, program: str) -> None:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:  # fmt: skip
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(number)
    deadline = time.monotonic() + 10
    while alive(child):
        assert time.monotonic() < deadline, f"process {child} lives on"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie counts as gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
