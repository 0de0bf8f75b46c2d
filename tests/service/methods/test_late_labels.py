"""Labels that people give while a run goes on: the judge learns from each at the next step, once, also after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from services.trainer.runs.labels import put
from tests.service.fake_loop import CONFIG, Loop
from tests.service.fragile import Killed
from tests.unit.trainer.played import PROMPT
from triforge.store.rows import read_rows
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    RunState,
    StepLabel,
    TrainRow,
)

STEPS = 4


def submit(loop: Loop, **options: Any) -> RunState:
    return loop.submit_with(
        {
            "run": CONFIG["run"] | {"steps": STEPS, "eval_every": 0},
            "reward": {"votes": 1, "audit_share": 0.0, "prompt": "terse"},
            "algorithm": {"preset": "audited"},
            "methods": {"audit": {"anchors": 0.0, "keep_steps": 0} | options},
        }
    )


def names(run: RunState, step: int = 1) -> list[str]:
    return [f"{run.id}-{step:05d}-train-{group:04d}-{n:02d}" for group in (0, 1) for n in (0, 1)]


def labels_at(loop: Loop, run: RunState, step: int, *labels: tuple[str, int, Any]) -> None:
    """Give labels when the tasks of a step are planned."""

    def give(planned: int) -> None:
        if planned == step:
            given = [StepLabel(trajectory=t, step=n, label=value) for t, n, value in labels]
            put(loop.store, run.id, given)

    loop.plans.before = give


def taught(loop: Loop) -> dict[int, list[TrainRow]]:
    """The rows of the judge by step, of all batches of a step alike."""
    rows = dict[int, list[TrainRow]]()
    for batch in loop.learners["reward"].batches:
        own = read_rows(loop.artifacts, batch.uri)
        assert rows.setdefault(batch.step, own) == own
    return rows


@pytest.fixture(autouse=True)
def _keep_rows(loop: Loop) -> None:
    loop.artifacts.delete = lambda uri: None  # type: ignore[method-assign]


async def test_a_late_label_teaches_the_judge_in_the_next_step_alone(loop: Loop) -> None:
    run = submit(loop)
    first, second = names(run)[:2]
    labels_at(loop, run, 2, (first, 0, -1), (second, 1, -1))
    ended = await loop.conduct(run)
    assert ended.status == "finished", ended.reason
    rows = taught(loop)
    assert [*rows] == [2]
    assert [row.key for row in rows[2]] == [f"{first}/0", f"{second}/1"]
    assert all(row.ids == (*PROMPT, 1, 2) for row in rows[2]), "the prompt of its votes, and a vote"
    assert sum(sum(row.weights) for row in rows[2]) == pytest.approx(1.0)
    metrics = {step.step: step.metrics for step in loop.store.steps(run.id)}
    assert [metrics[step]["audit/late"] for step in range(1, STEPS + 1)] == [0.0, 2.0, 0.0, 0.0]
    assert metrics[STEPS]["judge/unmeasured"] == 1.0


async def test_labels_are_trained_on_as_long_as_those_of_the_environment(loop: Loop) -> None:
    run = submit(loop, keep_steps=1)
    labels_at(loop, run, 2, (names(run)[0], 0, -1))
    await loop.conduct(run)
    assert {step: len(rows) for step, rows in taught(loop).items()} == {2: 1, 3: 1}


@pytest.mark.parametrize("place", ["read weights", "serve reward", "commit", "committed"])
async def test_an_orchestrator_that_dies_takes_each_label_once(loop: Loop, place: str) -> None:
    run, learner = submit(loop), loop.learners["reward"]
    name = names(run)[0]
    labels_at(loop, run, 2, (name, 0, -1))

    async def die() -> None:
        """Give another label while the first one is trained on, and end the orchestrator afterwards."""
        learner.before = None
        put(loop.store, run.id, [StepLabel(trajectory=name, step=1, label=1, by="b")])
        loop.troubles.plan(place, Killed(place))

    learner.before = die
    with pytest.raises(Killed):
        await loop.conduct(run)
    assert (await loop.conduct(run)).status == "finished"
    keys = {step: [row.key for row in rows] for step, rows in taught(loop).items()}
    assert keys == {2: [f"{name}/0"], 3: [f"{name}/1"]}
    assert all(count == 1 for count in loop.trained().values())


async def test_labels_of_anchors_measure_the_judge_and_do_not_train_it(loop: Loop) -> None:
    judge, asked = loop.services["reward"], list[GenerateRequest]()

    async def generate_many(requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        asked.extend(requests)
        text = "\\boxed{1}"
        output = GenerateOutput(text=text, ids=(1,), logprobs=(-0.5,), versions=())
        return [GenerateReply(prompt_ids=PROMPT, outputs=(output,)) for _ in requests]

    judge.generate_many = generate_many  # type: ignore[attr-defined]
    run = submit(loop, anchors=1.0)
    anchor = names(run)[0]
    labels_at(loop, run, 2, (anchor, 0, -1), (anchor, 1, 1))
    await loop.conduct(run)
    assert taught(loop) == {}
    metrics = {step.step: step.metrics for step in loop.store.steps(run.id)}
    assert [metrics[n]["audit/anchors"] for n in range(1, STEPS + 1)] == [0.0, 1.0, 1.0, 1.0]
    assert (metrics[1]["judge/unmeasured"], metrics[2]["judge/unmeasured"]) == (1.0, 0.0)
    assert len(asked) == 2, "once, by the version that it came to"
    assert "a0" in asked[0].messages[0].text
