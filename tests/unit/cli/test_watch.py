"""The progress of a run: its lines, and the activity of a step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from triforge.cli.terminal import program
from triforge.cli.watch import activity_of, left_running, line_of
from triforge.types import Event


def event(kind: str, step: int, **data: Any) -> Event:
    return Event(kind=kind, run_id="r", step=step, at=0.0, data=data)


@pytest.mark.parametrize(
    ("data", "activity"),
    [
        ({"purpose": "train", "done": 7, "total": 16}, "step 3: 7 of 16 groups"),
        ({"purpose": "evaluate", "done": 1, "total": 4}, "step 3, evaluation: 1 of 4 groups"),
    ],
)
def test_groups_are_counted_and_make_no_lines(data: dict[str, Any], activity: str) -> None:
    group = event("group", 3, **data)
    assert (activity_of(group), line_of(group)) == (activity, "")


def test_a_step_without_training_is_loud_and_one_without_measures_makes_no_line() -> None:
    idle = event("step", 1, metrics={"success": 0.0}, note="trained on 0 of 4", alarm="why")
    loud = "NOTHING TRAINED at step 1: trained on 0 of 4\nALARM at step 1: why"
    assert line_of(idle) == f"step 1: success 0.000\n{loud}"
    assert line_of(event("step", 0, metrics={"seconds": 3.0})) == ""


def test_scores_are_shown_where_there_are_scores() -> None:
    assert line_of(event("step", 1, metrics={"success": 0.5})) == "step 1: success 0.500"
    scored = event("step", 2, metrics={"score": 0.25, "eval/sampled_score": 0.3})
    assert line_of(scored) == "step 2: score 0.250  eval score 0.300"


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        (
            "proposal",
            {"state": "invalid", "instruction_before": "put a mug", "reason": "no JSON"},
            "invalid: a rewrite of 'put a mug': no JSON",
        ),
        (
            "proposal",
            {"null_control": True, "instruction_before": "a", "instruction_after": "a"},
            "proposal: 'a' as it is, a control",
        ),
        (
            "accepted",
            {"null_control": False, "instruction_before": "a", "instruction_after": "b"},
            "accepted: 'a' -> 'b'",
        ),
        (
            "rejected",
            {"instruction_before": "a", "instruction_after": "a"},
            "rejected: 'a', the same goal under other conditions",
        ),
    ],
)
def test_a_rewrite_is_shown_with_its_texts(kind: str, data: dict[str, Any], line: str) -> None:
    assert line_of(event(kind, 1, **data)) == line


async def test_an_interrupted_watch_says_that_the_run_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
