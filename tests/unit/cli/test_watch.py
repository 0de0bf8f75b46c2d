"""The progress of a run: its lines, and the activity of a step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rich.console import Console

from tests.unit.cli.conftest import Services, run_state
from triforge.cli.terminal import program
from triforge.cli.watch import activity_of, fitted, left_running, line_of, watch
from triforge.clients.trainer import TrainerClient
from triforge.types import Event


def event(kind: str, step: int, **data: Any) -> Event:
    return Event(kind=kind, run_id="r", step=step, at=0.0, data=data)


def test_groups_are_counted_and_make_no_lines() -> None:
    played = event("group", 3, purpose="train", done=7, total=16)
    assert (activity_of(played), line_of(played)) == ("step 3: 7 of 16 groups", "")
    evaluated = event("group", 3, purpose="evaluate", done=1, total=4)
    assert activity_of(evaluated) == "step 3, evaluation: 1 of 4 groups"


def test_what_raised_makes_a_line_at_once_and_a_slow_reward_too() -> None:
    failures = {"KeyError at r.py:3": "score: KeyError: 'x' (r.py:3)"}
    lost = event("group", 3, purpose="train", done=7, total=16, failures=failures)
    assert line_of(lost) == "NOT MEASURED at step 3: score: KeyError: 'x' (r.py:3)"
    waits = event("waits", 3, text="score grades 64 answers")
    assert line_of(waits) == activity_of(waits) == "step 3: score grades 64 answers"


async def test_an_exception_that_comes_again_is_reported_once(
    services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("a", "a", "b")
    groups = [event("group", 1, failures={name: f"it was {name}"}) for name in names]
    services.say("GET /v1/runs/r", run_state("finished", id="r"))
    services.tell("r", *groups)
    async with TrainerClient(services.url) as client:
        await watch(Console(), client, "r")
    assert capsys.readouterr().out.count("it was") == 2


def test_a_step_without_training_is_loud_and_one_without_measures_makes_no_line() -> None:
    idle = event("step", 1, metrics={"success": 0.0}, note="trained on 0 of 4", alarm="why")
    loud = "NOTHING TRAINED at step 1: trained on 0 of 4\nALARM at step 1: why"
    assert line_of(idle) == f"step 1: success 0.000\n{loud}"
    assert line_of(event("step", 0, metrics={"seconds": 3.0})) == ""


def test_advice_is_given_once() -> None:
    given: set[str] = set()
    for number, answer in enumerate("abc"):
        note = f"trained on 0 of 4; to change: this; a sample answer: {answer!r}"
        line = line_of(event("step", number, metrics={}, note=note), given)
        assert (
            line
            == f"NOTHING TRAINED at step {number}: {note if not number else 'trained on 0 of 4'}"
        )
    other = line_of(event("step", 9, metrics={}, note="trained on 0 of 4; to change: that"), given)
    assert other.endswith("to change: that")


def test_a_narrow_terminal_breaks_lines_between_measures() -> None:
    line = "step 12: success 0.250  in band 0.500  eval sampled 0.125  play s 2.775\nALARM a  b"
    assert fitted(line, 40) == (
        "step 12: success 0.250  in band 0.500\n    eval sampled 0.125  play s 2.775\nALARM a  b"
    )
    assert fitted(line, 100) == line


def test_scores_are_shown_where_there_are_scores() -> None:
    assert line_of(event("step", 1, metrics={"success": 0.5})) == "step 1: success 0.500"
    scored = event("step", 2, metrics={"score": 0.25, "eval/sampled_score": 0.3})
    assert line_of(scored) == "step 2: score 0.250  eval score 0.300"


def test_a_rewrite_is_shown_with_its_texts() -> None:
    texts = {"instruction_before": "a", "instruction_after": "b"}
    assert line_of(event("accepted", 1, **texts)) == "accepted: 'a' -> 'b'"
    invalid = event("proposal", 1, state="invalid", instruction_before="a", reason="no JSON")
    assert line_of(invalid) == "invalid: a rewrite of 'a': no JSON"
    same = texts | {"instruction_after": "a"}
    control = event("proposal", 1, null_control=True, **same)
    assert line_of(control) == "proposal: 'a' as it is, a control"


async def test_interrupted_watch(capsys: pytest.CaptureFixture[str]) -> None:
    async def watching() -> None:
        with left_running("run-1"):
            await asyncio.Event().wait()

    task = asyncio.create_task(watching())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    printed = capsys.readouterr().out
    assert f"run-1 goes on; to stop it: {program()} run stop run-1" in printed
