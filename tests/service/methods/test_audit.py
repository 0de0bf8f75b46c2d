"""The judge's part of a step: labels become its rows, a version that judges worse is taken back, and crashes change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.service.fake_loop import CONFIG, FakeService, Loop
from triforge.store.rows import read_rows
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    RunState,
    TrainedRole,
    VersionSpan,
)

STEPS = 4
LABELS = (1, -1)


class Judge(FakeService):
    """A policy service of the judge whose versions vote right on every step, but those whose folder is in `bad`."""

    bad: str = ""

    async def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        good = not (self.bad and self.uri.endswith(self.bad))
        return [self._reply(LABELS[n] if good else -LABELS[n]) for n, _ in enumerate(requests)]

    def _reply(self, value: int) -> GenerateReply:
        span = VersionSpan(version=self.version, start=0, end=1)
        text = f"\\boxed{{{value}}}"
        output = GenerateOutput(
            text=text, ids=(value + 10,), logprobs=(-0.1,), versions=(span,), finish="stop"
        )
        return GenerateReply(prompt_ids=(1, 2), outputs=(output,))


@pytest.fixture
def audited(loop: Loop) -> Loop:
    role: TrainedRole = "reward"
    loop.services[role] = Judge(role, loop.troubles)
    loop.workers.labels = LABELS
    loop.learners[role].writes = True
    return loop


def submit(loop: Loop, audit: dict[str, Any] | None = None, **overrides: Any) -> RunState:
    return loop.submit_with(
        {
            "run": CONFIG["run"] | {"steps": STEPS, "groups_per_step": 12, "eval_every": 0},
            "env_adapter": {"rollouts": 2},
            "reward": {"votes": 1, "audit_share": 1.0},
            "methods": {"audit": {"anchors": 0.5} | (audit or {})},
            "algorithm": {"preset": "audited", "overrides": overrides},
            "adaptation": {"controller": "none"},
        }
    )


async def test_the_judge_imitates_its_right_votes_and_those_of_earlier_steps(audited: Loop) -> None:
    audited.artifacts.delete = lambda uri: None  # type: ignore[method-assign]
    run = await audited.conduct(submit(audited))
    assert run.status == "finished"
    batches = audited.learners["reward"].batches
    assert [b.algorithm.job for b in batches] == ["ce"] * STEPS
    rows = [read_rows(audited.artifacts, b.uri) for b in batches]
    measures = [s.metrics for s in audited.store.steps(run.id) if s.step]
    labels = [int(m["audit/labels"]) for m in measures]
    assert all(0 < n < 48 for n in labels), "24 rollouts of 2 steps; half of the groups are anchors"
    assert [len(part) for part in rows] == [sum(labels[: n + 1]) for n in range(STEPS)]
    assert all(sum(sum(row.weights) for row in part) == pytest.approx(1.0) for part in rows)
    assert [m["audit/anchors"] for m in measures] == [
        min(64, sum(24 - n / 2 for n in labels[: k + 1])) for k in range(STEPS)
    ]
    assert {m["audit/refused"] for m in measures} == {0.0}
    assert {m["audit/balanced"] for m in measures} == {1.0}


async def test_a_judge_is_trained_every_other_step_and_measured_on_few_anchors(
    audited: Loop,
) -> None:
    audited.artifacts.delete = lambda uri: None  # type: ignore[method-assign]
    options = {"train_every": 2, "updates": 7, "keep_steps": 0, "most_anchors": 10}
    run = await audited.conduct(submit(audited, options))
    batches = audited.learners["reward"].batches
    assert [(b.step, b.learner.updates_per_step) for b in batches] == [(2, 7), (4, 7)]
    measures = [s.metrics for s in audited.store.steps(run.id) if s.step]
    labels = [int(m["audit/labels"]) for m in measures]
    rows = [len(read_rows(audited.artifacts, b.uri)) for b in batches]
    assert rows == [labels[0] + labels[1], labels[2] + labels[3]], "those since the last training"
    assert [m["audit/anchors"] for m in measures] == [10.0] * STEPS


async def test_a_version_that_judges_worse_is_taken_back(audited: Loop) -> None:
    judge = audited.services["reward"]
    assert isinstance(judge, Judge)
    judge.bad = "v000003"
    run = await audited.conduct(submit(audited))
    measures = [s.metrics for s in audited.store.steps(run.id) if s.step]
    assert [m["audit/refused"] for m in measures] == [0.0, 1.0, 0.0, 0.0]
    starts = [b.start.folder.rsplit("/", 1)[-1] for b in audited.learners["reward"].batches]
    base = audited.store.run_state(run.id)["base"]["reward"]
    assert starts[2] != "v000003", "the learner goes on from the version before"
    origins = [r.origin for r in audited.store.weights_of(run.id, "reward")]
    assert [o for o in origins if o is not None] == [base + 1]
    assert all(m["audit/anchors_balanced_before"] == 1.0 for m in measures)


async def test_votes_weigh_what_the_version_that_judges_knows(audited: Loop) -> None:
    judge = audited.services["reward"]
    assert isinstance(judge, Judge)
    judge.bad = "v000003"
    weighs = {"by_competence": True}
    run = await audited.conduct(submit(audited, weighs))
    measures = [s.metrics for s in audited.store.steps(run.id) if s.step]
    assert [m["audit/trust"] for m in measures] == [1.0] * STEPS, "the bad version never judged"


async def test_a_version_that_nothing_refuses_judges_with_the_weight_of_what_it_knows(
    audited: Loop,
) -> None:
    judge = audited.services["reward"]
    assert isinstance(judge, Judge)
    judge.bad = "v000003"
    run = await audited.conduct(submit(audited, {"by_competence": True, "error": 0.0}))
    measures = [s.metrics for s in audited.store.steps(run.id) if s.step]
    assert [m["audit/trust"] for m in measures] == [1.0, 1.0, 0.0, 1.0]
    assert [m["audit/anchors_balanced"] for m in measures] == [1.0, 0.0, 1.0, 1.0]


async def test_a_run_does_not_end_with_a_refused_version(audited: Loop) -> None:
    judge = audited.services["reward"]
    assert isinstance(judge, Judge)
    judge.bad = "v000005"
    run = await audited.conduct(submit(audited))
    assert audited.store.steps(run.id)[-1].metrics["audit/refused"] == 1.0
    assert (judge.version, judge.uri[-7:]) == (6, "v000006"), "a copy of version 4"
    assert run.versions["reward"] == 6


async def test_a_frozen_judge_is_measured_and_not_trained(audited: Loop) -> None:
    run = await audited.conduct(submit(audited, train_reward_model=False, judge_target="published"))
    assert run.status == "finished"
    assert audited.learners["reward"].batches == []
    assert audited.store.steps(run.id)[-1].metrics["audit/right"] == 1.0


async def test_a_crash_changes_nothing(audited: Loop) -> None:
    judge = audited.services["reward"]
    assert isinstance(judge, Judge)
    judge.bad = "v000003"
    run = submit(audited)
    place = 1
    while await audited.killed(run, place):
        place += 7
    measures = [s.metrics for s in audited.store.steps(run.id) if s.step]
    assert [m["audit/refused"] for m in measures] == [0.0, 1.0, 0.0, 0.0]
    assert set(audited.trained().values()) == {1}
