"""What the live view says of a step under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from triforge.cli.terminal import program
from triforge.cli.watch import View, left_running
from triforge.types import Event, RunState

RUN = RunState(
    id="r", name="run", pool_id="p", status="running", step=0, steps=4, policy_version=1,
    reward_version=1, created_at=0.0, updated_at=0.0,
)  # fmt: skip


def event(kind: str, step: int, **data: Any) -> Event:
    return Event(kind=kind, run_id="r", step=step, at=0.0, data=data)


def first_line(view: View) -> str:
    return str(view.table().caption).split("\n")[0]


def test_the_caption_counts_the_groups_of_the_step_until_it_is_finished() -> None:
    view = View(RUN)
    view.take(event("group", 3, purpose="train", done=7, total=16))
    assert first_line(view) == "step 3: 7 of 16 groups"
    view.take(event("group", 3, purpose="evaluate", done=1, total=4))
    assert first_line(view) == "step 3, evaluation: 1 of 4 groups"
    view.take(event("step", 3, metrics={}))
    assert first_line(view).startswith("rewrites: ")


def test_a_step_that_trained_on_nothing_is_loud_and_one_without_figures_makes_no_line() -> None:
    view, idle = View(RUN), event("step", 1, metrics={"success": 0.0}, note="trained on 0 of 4")
    view.take(idle)
    loud = "NOTHING TRAINED at step 1: trained on 0 of 4"
    assert view.line(idle) == f"step 1: success 0.000\n{loud}"
    assert first_line(view) == loud
    assert view.line(event("step", 0, metrics={"seconds": 3.0})) == ""


def test_a_judge_that_is_being_gamed_is_loud_too() -> None:
    view, step = View(RUN), event("step", 2, metrics={}, note="trained on 0 of 4", alarm="why")
    view.take(step)
    assert view.line(step) == "NOTHING TRAINED at step 2: trained on 0 of 4\nALARM at step 2: why"
    assert str(view.table().caption).split("\n")[1] == "ALARM at step 2: why"


def test_the_score_has_a_column_where_there_are_scores() -> None:
    view = View(RUN)
    view.take(event("step", 1, metrics={"success": 0.5}))
    assert "score" not in [column.header for column in view.table().columns]
    view.take(event("step", 2, metrics={"score": 0.25, "eval/sampled_score": 0.3}))
    assert {"score", "eval score"} <= {column.header for column in view.table().columns}


def test_a_rewrite_without_a_text_is_an_invalid_one_with_its_reason() -> None:
    view = View(RUN)
    empty = event("proposal", 1, state="invalid", instruction_before="put a mug", reason="no JSON")
    view.take(empty)
    assert view.line(empty) == "invalid: a rewrite of 'put a mug': no JSON"
    assert "0 proposal, 0 accepted, 0 rejected, 1 invalid" in str(view.table().caption)


async def test_who_stops_watching_hears_that_the_run_goes_on(
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
    said = capsys.readouterr().out
    assert f"run-1 goes on; to stop it: {program()} run stop run-1" in said


def test_groups_make_no_lines_in_a_log() -> None:
    assert View(RUN).line(event("group", 3, purpose="train", done=7, total=16)) == ""


def test_an_unchanged_task_that_controls_the_test_is_not_shown_as_a_rewrite() -> None:
    view, texts = View(RUN), {"instruction_before": "put a mug", "instruction_after": "put a mug"}
    control = event("proposal", 1, null_control=True, **texts)
    view.take(control)
    assert view.line(control) == "proposal: 'put a mug' as it is, a control"
    assert str(view.table().caption).endswith(view.line(control))
    changed = event("accepted", 1, null_control=False, **texts | {"instruction_after": "put two"})
    assert view.line(changed) == "accepted: 'put a mug' -> 'put two'"
