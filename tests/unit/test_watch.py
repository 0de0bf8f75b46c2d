"""What the live view says of a step under way."""

from __future__ import annotations

from typing import Any

from triforge.cli.watch import View
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
