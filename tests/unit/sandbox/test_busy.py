"""A busy machine is no fault of the program: waiting for a processor is not its time, and without end it is no verdict."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from triforge.errors import SandboxError
from triforge.sandbox.client import _busy
from triforge.sandbox.limits import Limits
from triforge.sandbox.runs import START_S, STRETCH, Run


def run_of(wall_s: float) -> Run:
    """A run that began at second 100."""
    run = Run({"id": 7, "limits": asdict(Limits(wall_s=wall_s))}, None)
    run.began = 100.0
    return run


def test_a_program_that_waits_for_a_processor_has_that_time_back() -> None:
    run = run_of(10.0)
    for second in range(101, 109):
        run.looked(float(second), 0.25 * (second - 100), wants=True)
    assert run.deadline() == pytest.approx(100 + 10 + 8 - 2)
    assert not run.starved()


def test_a_program_that_sleeps_or_works_has_its_own_time_and_no_more() -> None:
    for wants, used in ((False, 0.0), (True, 1.0), (True, 2.0)):
        run = run_of(10.0)
        for second in range(1, 10):
            run.looked(100.0 + second, used * second, wants=wants)
        assert run.deadline() == pytest.approx(110.0)
        assert not run.starved()


def test_waiting_without_end_is_an_error_of_the_machine_and_never_a_result() -> None:
    run = run_of(10.0)
    run.looked(100.0 + STRETCH * 10.0 + START_S + 1.0, 0.1, wants=True)
    assert run.deadline() == pytest.approx(100 + 10 + STRETCH * 10 + START_S)
    assert run.starved()
    run.reaped = True
    run.kill("busy")
    run.seconds = 71.0
    answer = run.answer()
    assert answer == {"id": 7, "busy": 71.0, "cpu_s": 0.1}
    error = _busy(answer["busy"], answer["cpu_s"])
    assert isinstance(error, SandboxError)
    assert error.retryable
    assert (
        "0.1 s of processor time in 71 s and is not measured: the machine is too busy"
        in error.detail
    )
