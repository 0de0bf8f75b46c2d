"""Step scores that come from elsewhere than a trained judge: shuffled votes, an oracle, the policy's ratio to a reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import pytest

from services.reward.scorers.log_ratio import UNMOVED, votes_of
from services.reward.worker import scorer_of
from services.trainer.credit.judged_groups import vote_values
from tests.rollouts import step_credit
from tests.unit.reward.test_judge import Says
from tests.unit.trainer.played import group_task, trajectory
from triforge.algorithms.algorithm import resolve
from triforge.errors import RewardError
from triforge.rollout.episode import judge_task
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    JudgeTask,
    Outcome,
    Trajectory,
    TrajectoryVotes,
)

NO_MODEL = cast("Any", None)  # who asks no model never calls it


def values(votes: TrajectoryVotes) -> dict[int, list[int]]:
    return {step.step: [vote.value for vote in step.votes] for step in votes.steps}


def job(**changes: Any) -> JudgeTask:
    return judge_task(group_task(votes=3), 0).model_copy(update=changes)


# ---- an oracle ----


async def test_an_oracle_is_right_as_often_as_it_says_and_the_same_every_time() -> None:
    played = trajectory(
        group_task(), 0, outcome=-1, lengths=[1] * 401, labels=[None, *[1, -1] * 200]
    )
    oracle = scorer_of("oracle")
    for accuracy, low, high in ((1.0, 1.0, 1.0), (0.75, 0.72, 0.78), (0.0, 0.0, 0.0)):
        votes = await oracle(played, job(accuracy=accuracy), NO_MODEL)
        assert [step.step for step in votes.steps] == list(range(1, 401)), "no label, no votes"
        hits = [v.value == played.steps[s.step].label for s in votes.steps for v in s.votes]
        assert low <= sum(hits) / len(hits) <= high
        assert votes == await oracle(played, job(accuracy=accuracy), NO_MODEL)


async def test_an_oracle_without_labels_has_not_judged() -> None:
    played = trajectory(group_task(), 0, outcome=1, lengths=[1, 1])
    with pytest.raises(RewardError, match="needs labels"):
        await scorer_of("oracle")(played, job(), NO_MODEL)


async def test_errors_that_repeat_are_as_many_and_the_same_for_an_action_with_the_same_result() -> (
    None
):
    played = trajectory(group_task(), 0, outcome=-1, lengths=[1] * 400, labels=[1, -1] * 200)
    steps = [
        step.model_copy(update={"action": f"take {n // 4}", "next_observation": "ok"})
        for n, step in enumerate(played.steps)
    ]
    played = played.model_copy(update={"steps": tuple(steps)})
    planted = job(accuracy=0.75, errors="repeat")
    votes = await scorer_of("oracle")(played, planted, NO_MODEL)
    right: dict[str, set[bool]] = {}
    for judged in votes.steps:
        step = played.steps[judged.step]
        right.setdefault(step.action, set()).update(v.value == step.label for v in judged.votes)
    assert {len(found) for found in right.values()} == {1}, "all four steps, all votes"
    assert 0.65 < sum(map(all, right.values())) / len(right) < 0.85
    other = planted.model_copy(update={"seed": 99, "run_id": "other"})
    assert votes == await scorer_of("oracle")(played, other, NO_MODEL)


async def test_praise_is_for_every_step_with_a_label_or_without() -> None:
    played = trajectory(group_task(), 0, outcome=-1, lengths=[1, 1], labels=[None, -1])
    assert values(await scorer_of("praise")(played, job(), NO_MODEL)) == {0: [1] * 3, 1: [1] * 3}


# ---- shuffled votes ----


async def test_shuffled_votes_are_the_judges_on_other_steps() -> None:
    texts = [(r"\boxed{1}",) * n + (r"\boxed{-1}",) * (3 - n) for n in (0, 1, 2, 3)] * 5
    played = trajectory(group_task(), 0, outcome=1, lengths=[1] * 20)
    judged = values(await scorer_of("votes")(played, job(), Says(*texts)))
    shuffled = values(await scorer_of("shuffled")(played, job(), Says(*texts)))
    assert list(shuffled) == list(judged)
    assert sorted(shuffled.values()) == sorted(judged.values())
    assert shuffled != judged
    assert shuffled == values(await scorer_of("shuffled")(played, job(), Says(*texts)))
    assert shuffled != values(await scorer_of("shuffled")(played, job(seed=99), Says(*texts)))


# ---- the log-ratio ----


class Reference:
    """Scores every prompt token with the same log-probability."""

    def __init__(self, logprob: float, *, cut: int = 0, version: int | None = 7) -> None:
        self.logprob, self.cut, self.version = logprob, cut, version

    async def __call__(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        assert all(request.prompt_logprobs and not request.messages for request in requests)
        return [
            GenerateReply(
                prompt_ids=request.prefix_ids,
                outputs=(),
                prompt_logprobs=(self.logprob,) * (len(request.prefix_ids) - 1 - self.cut),
                prompt_version=self.version,
            )
            for request in requests
        ]


def sampled(logprobs: Sequence[Sequence[float]], segments: Sequence[int]) -> Trajectory:
    """A trajectory whose response i was sampled with `logprobs[i]`, in segment `segments[i]`."""
    lengths = [len(row) for row in logprobs]
    played = trajectory(group_task(), 0, outcome=1, lengths=lengths, segments=segments)
    rows = [[0.0] * len(segment.ids) for segment in played.segments]
    for step, row in zip(played.steps, logprobs, strict=True):
        rows[step.segment][step.start : step.end] = row
    kept = tuple(
        segment.model_copy(update={"logprobs": tuple(row)})
        for segment, row in zip(played.segments, rows, strict=True)
    )
    return played.model_copy(update={"segments": kept})


async def test_a_response_that_training_made_likelier_is_voted_for_by_its_level() -> None:
    # against a reference of log p = -1 a token: L = +0.5, -2.0, +3.0 and (unmoved) 0
    played = sampled([[-0.5], [-2.0, -2.0], [0.0, 0.0, 0.0], [-1.0]], [0, 0, 1, 1])
    votes = await scorer_of("log_ratio")(played, job(), Reference(-1.0))
    # pi / (pi + pi_ref) = .622, .119, .953; of three votes 1.87, .36, 2.86
    assert values(votes) == {0: [1, 1, -1], 1: [-1, -1, -1], 2: [1, 1, 1], 3: [0, 0, 0]}
    assert [float(step.votes[0].text) for step in votes.steps] == [0.5, -2.0, 3.0, 0.0]


async def test_a_policy_that_has_not_moved_is_trained_by_its_outcomes() -> None:
    played = [
        sampled([[-1.0], [-1.0]], [0, 0]).model_copy(update={"outcome": Outcome(value=o)})
        for o in (1, -1)
    ]
    votes = [await scorer_of("log_ratio")(one, job(), Reference(-1.0)) for one in played]
    credit = step_credit(
        [1, -1], [vote_values(*pair) for pair in zip(played, votes, strict=True)],
        algorithm=resolve("rlanything", {"train_reward_model": False}),
    )  # fmt: skip
    assert credit.rewards == ((1.0, 1.0), (-1.0, -1.0))
    assert all(reason is None for row in credit.reasons for reason in row)


@pytest.mark.parametrize("ratio", [UNMOVED, 0.3, 2.0, 40.0])
def test_levels_are_symmetric_and_grow(ratio: float) -> None:
    for count in (1, 2, 3, 8, 64):
        plus = [vote.value for vote in votes_of(ratio, count)].count(1)
        assert plus == [vote.value for vote in votes_of(-ratio, count)].count(-1)
        assert plus == round(count / (1 + math.exp(-ratio)))


async def test_a_reference_that_scores_something_else_is_refused() -> None:
    played = sampled([[-0.5], [-0.5]], [0, 0])
    with pytest.raises(RewardError, match="the policy's tokenizer"):
        await scorer_of("log_ratio")(played, job(), Reference(-1.0, cut=1))


async def test_an_implicit_reward_is_how_much_likelier_the_reward_model_finds_a_response() -> None:
    played = sampled([[-0.5], [-2.0, -2.0], [0.0, 0.0, 0.0], [-1.0]], [0, 0, 1, 1])
    found = await scorer_of("istar")(played, job(), Reference(-1.0))
    assert [step.score for step in found.steps] == [-0.5, 2.0, -3.0, 0.0]
    assert [(step.votes, step.score_version) for step in found.steps] == [((), 7)] * 4
    for asked in (Reference(-1.0, cut=1), Reference(-1.0, version=None)):
        with pytest.raises(RewardError, match="the policy's tokenizer"):
            await scorer_of("istar")(played, job(), asked)
