"""The collapse monitor over the steps of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from methods.starpo.loop import CollapseMonitor, information, thoughts_of
from methods.starpo.options import StarPOOptions
from services.trainer.loop.hooks import MethodContext
from tests.unit.trainer.played import group_task, judged
from triforge.algorithms.alarms import alarms
from triforge.config import RunConfig
from triforge.errors import UnavailableError
from triforge.types import GenerateReply, GenerateRequest, JudgedGroup

SMALL = StarPOOptions(window=2, evaluations=2)


def monitor(notes: dict[str, Any], limits: StarPOOptions) -> CollapseMonitor:
    parts: Any = None
    run = MethodContext(name="starpo", parts=parts, run_id="run", config=RunConfig(), notes=notes)
    return CollapseMonitor(run, limits)


async def monitored(steps: list[dict[str, float]], limits: StarPOOptions = SMALL) -> list[set[str]]:
    """The rules that are on at each step; a restart before every step changes nothing."""
    notes: dict[str, Any] = {}
    found = []
    for step, measures in enumerate(steps, 1):
        notes = json.loads(json.dumps(notes))
        before = json.loads(json.dumps(notes))
        first = await monitor(notes, limits).after_step(step, measures)
        assert await monitor(notes, limits).after_step(step, measures) == first, "repeated"
        assert await monitor(before, limits).after_step(step, measures) == first
        assert first["collapse/alarm"] == len(first) - 1
        found.append({name.split("/")[2] for name in first if name.count("/") == 2})
    return found


@pytest.mark.parametrize(
    ("measure", "values", "rule"),
    [
        ("collapse/spread", [1.0, 1.0, 0.2, 0.05, 0.05], "spread"),
        ("collapse/information", [2.0, 2.0, 0.3, 0.2, 0.1], "information"),
        ("policy/grad_norm", [1.0, 2.0, 1.5, 30.0, 900.0], "gradient"),
        ("eval/sampled", [0.0, 0.5, 0.0, 0.1, 0.0], ""),
        ("eval/greedy", [0.0, 0.5, 0.5, 0.0, 0.0], "held_out"),
        ("eval/greedy", [0.0, 0.0, 0.0, 0.0, 0.0], ""),
    ],
)
async def test_a_collapse_that_is_forced_raises_the_alarm_and_only_then(
    measure: str, values: list[float], rule: str
) -> None:
    found = await monitored([{measure: value} for value in values])
    assert found == [set(), set(), set(), set(), {rule} - {""}]


async def test_success_is_alarming_when_its_interval_lies_below_half_of_what_was_certain() -> None:
    fine = {"success": 0.8, "success/low": 0.6, "success/high": 0.9}
    found = await monitored([fine, fine | {"success/high": 0.31}, fine | {"success/high": 0.29}])
    assert found[1:] == [
        set(), {"success"},
    ]  # fmt: skip
    held = fine | {"eval/greedy": 0.5, "eval/greedy/low": 0.4, "eval/greedy/high": 0.6}
    assert await monitored([held, fine | {"success/high": 0.1}]) == [set(), set()], (
        "training tasks change"
    )


async def test_only_the_rules_of_ragen_2_end_a_run_and_only_if_they_are_to() -> None:
    for stop, name, ends in (
        (True, "collapse/spread", True), (True, "policy/grad_norm", False), (False, "collapse/spread", False),
    ):  # fmt: skip
        hooks = monitor({}, StarPOOptions(window=1, stop=stop))
        for step, value in enumerate((1.0, 100.0) if "grad" in name else (1.0, 0.01), 1):
            measures = await hooks.after_step(step, {name: value})
        assert alarms(measures)["C"].startswith("the policy collapses: ")
        assert hooks.stop == (alarms(measures)["C"] if ends else "")


async def test_a_run_that_is_resumed_goes_on_for_as_long_again() -> None:
    limits, notes, ends = StarPOOptions(window=3, evaluations=2, stop=True), dict[str, Any](), []
    for step, spread in enumerate([1.0] * 3 + [0.01] * 5, 1):
        hooks = monitor(notes, limits)
        success = {"eval/sampled": spread - 0.01, "eval/sampled/low": max(0.0, spread - 0.2)}
        await hooks.after_step(step, {"collapse/spread": spread} | success)
        if hooks.stop:
            ends.append(step)
    assert ends == [5, 7]


# ---- thoughts ----


def groups(*prompts: int, action: str = "a0") -> list[JudgedGroup]:
    """Groups whose first response is `thinking a0`, of which 4 tokens, after prompts of their own."""
    found = []
    for number in prompts:
        group = judged(group_task(f"g{number}"), [1, -1], [[[1]], [[1]]])
        played = group.played.trajectories[0]
        step = played.steps[0].model_copy(
            update={"response": "thinking a0", "action": action, "end": played.steps[0].start + 4}
        )
        ids = (100, number, 1, 2, 3, 4)
        segment = played.segments[0].model_copy(update={"ids": ids, "logprobs": (0.0,) * 6})
        one = played.model_copy(update={"steps": (step,), "segments": (segment,)})
        trajectories = (one, *group.played.trajectories[1:])
        played_ = group.played.model_copy(update={"trajectories": trajectories})
        found.append(group.model_copy(update={"played": played_}))
    return found


def test_a_thought_is_what_stands_before_the_action_and_prompts_count_once() -> None:
    assert thoughts_of(groups(7, 8, 7), 9) == [((100, 7), (1, 2, 3)), ((100, 8), (1, 2, 3))]
    assert thoughts_of(groups(7, action="thinking a0"), 9) == [((100, 7), (1, 2, 3, 4))]
    assert len(thoughts_of(groups(7, 8, 9), 2)) == 2


class Engine:
    """Scores: a thought is likely after prompts whose second id is in `likes`."""

    def __init__(self, *likes: int, fails: bool = False) -> None:
        self.likes, self.fails, self.asked = likes, fails, list[int]()

    async def generate_many(self, requests: list[GenerateRequest]) -> list[GenerateReply]:
        self.asked.append(len(requests))
        if self.fails:
            raise UnavailableError("no scores here")
        return [
            GenerateReply(
                prompt_ids=r.prefix_ids,
                outputs=(),
                prompt_logprobs=(0.0, *[-0.1 if r.prefix_ids[1] in self.likes else -9.0] * 3),
            )
            for r in requests
        ]


async def test_each_thought_is_scored_after_each_prompt() -> None:
    engine: Any = Engine()
    found = await information(groups(7, 8, 9), 8, engine)
    assert engine.asked == [3, 3, 3], "a request a thought"
    assert found["collapse/information"] == pytest.approx(0.0), "the same whatever the prompt"
    assert (
        await information(groups(7), 8, engine) == await information(groups(7, 8), 0, engine) == {}
    )


async def test_engines_that_cannot_score_cost_the_run_nothing_else() -> None:
    engine: Any = Engine(fails=True)
    assert await information(groups(7, 8), 8, engine) == {}
