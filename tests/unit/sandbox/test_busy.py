"""Time on a busy machine: waiting for a processor does not count, and a program cannot pretend to wait."""

from __future__ import annotations

import os
from dataclasses import asdict

import pytest

from triforge.sandbox.client import Sandbox
from triforge.sandbox.kernel import busy, delayed
from triforge.sandbox.limits import Limits
from triforge.sandbox.runs import START_S, STRETCH, Run

# a parent stands in state D, which looks like waiting for the machine, for as long as its vforked child pleases
VFORK = """
import ctypes
print("wrong", flush=True)
number = 56 if __import__("os").uname().machine == "x86_64" else 220
if ctypes.CDLL(None).syscall(number, 0x4000 | 17, 0, 0, 0, 0) == 0:
    ctypes.CDLL(None).sleep(60)
"""


def run_of(wall_s: float) -> Run:
    """Make a run that began at second 100, when all processors together had worked for 1,000."""
    run = Run({"id": 7, "limits": asdict(Limits(wall_s=wall_s))}, None)
    run.began = run._looked = 100.0
    run._machine = 1000.0
    return run


def starved() -> Run:
    run = run_of(10.0)
    waited = STRETCH * 10.0 + START_S + 1.0
    run.looked(100.0 + waited, 0.1, delayed=waited, machine=1000.0 + 2 * waited)
    return run


def test_a_program_that_waits_for_a_processor_has_that_time_back() -> None:
    run = run_of(10.0)
    for second in range(1, 9):
        run.looked(100.0 + second, 0.25 * second, delayed=0.75 * second, machine=1000.0 + second)
    assert run.deadline() == pytest.approx(100 + 10 + 8 - 2)
    assert run.late() == "wall_time"


@pytest.mark.parametrize(
    ("used", "delay", "machine"),
    [
        (0.0, 0.0, 2.0),  # it sleeps on a busy machine
        (1.0, 0.0, 2.0),  # it works
        (2.0, 2.0, 2.0),  # its own processes stand in one another's way
        (0.1, 0.9, 0.1),  # likewise, on one processor of an idle machine
    ],
)
def test_a_program_that_others_do_not_hold_up_has_its_own_time_and_no_more(
    used: float, delay: float, machine: float
) -> None:
    run = run_of(10.0)
    for n in range(1, 10):
        run.looked(100.0 + n, used * n, delayed=delay * n, machine=1000.0 + machine * n)
    assert run.deadline() == pytest.approx(110.0)
    assert run.late() == "wall_time"


def test_a_program_that_got_no_processor_is_an_error_and_no_result() -> None:
    run = starved()
    assert run.deadline() == pytest.approx(100 + 10 + STRETCH * 10 + START_S)
    run.reaped = True
    run.kill(run.late())
    assert "run fewer" in run.response()["error"]


def test_a_cancelled_run_is_cancelled_whatever_ended_it() -> None:
    run = starved()
    run.reaped = True
    run.kill(run.late())
    run.kill("cancelled")
    assert run.response() == {"id": 7, "error": "the caller left"}


def test_a_state_that_a_program_chooses_is_no_waiting(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(VFORK, limits=Limits(wall_s=1.0))
    assert (result.ended, result.stdout) == ("wall_time", "wrong\n")
    assert result.seconds < 10.0  # and not until patience with a busy machine is over


def test_the_kernel_counts_work_and_waiting() -> None:
    before = busy()
    while busy() == before:
        pass
    assert delayed(os.getpid()) >= 0.0
    assert delayed(2**22 + 1) == 0.0  # there is no such process
