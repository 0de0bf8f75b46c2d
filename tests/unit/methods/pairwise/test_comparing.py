"""Scores by comparison: which pairs are shown, and what their verdicts come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from methods.pairwise.comparing import Pairwise, pairs_of
from services.trainer.credit.credited import credit
from services.trainer.credit.options import SampleOptions
from tests.unit.trainer.played import group_task, judged
from triforge.config import parse
from triforge.errors import InputError
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    JudgedGroup,
    JudgeTask,
    Sampling,
    VersionSpan,
)

GROUP = judged(group_task(run_id="r"), [1, 1, -1], [[[]] * 2] * 3)
ROLLOUTS = GROUP.played.trajectories
SPAN = (VersionSpan(version=4, start=0, end=1),)


class Judge:
    """A judge that answers by the texts of the two attempts; a pair of which it is given too much is refused."""

    def __init__(self, verdict: Callable[[str], str], refused: Sequence[int] = ()) -> None:
        self.verdict, self.refused = verdict, refused
        self.asked: list[GenerateRequest] = []

    async def __call__(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        if any(request.sampling.seed in self.refused for request in requests):
            raise InputError("too long")
        self.asked += requests
        return [
            GenerateReply(
                prompt_ids=(5,),
                outputs=(
                    GenerateOutput(
                        text=self.verdict(str(request.messages[0].content)), ids=(9,), logprobs=(-0.5,), versions=SPAN,
                        finish="stop",
                    ),
                ),
            )
            for request in requests
        ]  # fmt: skip


def job(votes: int) -> JudgeTask:
    return JudgeTask(
        scorer="pairwise", group_id="g", run_id="r", votes=votes, seed=7, sampling=Sampling(), deadline_s=9.0, prompt="terse",
    )  # fmt: skip


async def scores(judge: Judge, votes: int) -> dict[str, list[float | None]]:
    replies = await Pairwise.ask(judge, job(votes), GROUP.played)
    judgement = await Pairwise.judge(None, GROUP.played, replies)
    return {v.trajectory_id: [step.score for step in v.steps] for v in judgement.votes}


@pytest.mark.parametrize(
    ("count", "most", "pairs"), [(0, 3, 0), (1, 3, 0), (2, 1, 2), (2, 9, 2), (5, 1, 5), (5, 2, 10)]
)
def test_each_rollout_is_shown_first_as_often_as_second(count: int, most: int, pairs: int) -> None:
    rollouts = [
        ROLLOUTS[0].model_copy(update={"id": f"g-{n:02d}", "index": n}) for n in range(count)
    ]
    found = pairs_of(rollouts, most)
    assert len({(a.id, b.id) for a, b in found}) == len(found) == pairs
    assert all(a.id != b.id for a, b in found)
    assert Counter(a.id for a, _ in found) == Counter(b.id for _, b in found)


async def test_a_judge_that_prefers_a_place_favours_no_rollout() -> None:
    judge = Judge(lambda _: r"\boxed{1}")
    assert await scores(judge, 1) == {f"g-{n:02d}": [0.0, 0.0] for n in range(3)}
    assert len(judge.asked) == 3
    assert len({request.sampling.seed for request in judge.asked}) == 3


async def test_golden_scores() -> None:
    verdicts = iter([r"\boxed{1}", r"\boxed{-1}", "neither", r"\boxed{1}", "", r"\boxed{-1}"])
    # pairs 01 +, 02 -, 12 unreadable, 10 +, 20 unreadable, 21 -: 0 has 1 - 1 + 0 - 1, 1 has -1 + 0 + 1 + 1, 2 has 1 + 0 + 0 - 1
    found = await scores(Judge(lambda _: next(verdicts)), 2)
    assert found == {"g-00": [-0.25] * 2, "g-01": [0.25] * 2, "g-02": [0.0] * 2}


async def test_a_pair_that_is_too_long_is_left_out() -> None:
    seeds = [r.sampling.seed for r in (await asked(1))]
    judge = Judge(lambda _: r"\boxed{1}", refused=[s for s in seeds[1:] if s is not None])
    assert await scores(judge, 1) == {"g-00": [1.0, 1.0], "g-01": [-1.0, -1.0]}


async def asked(votes: int) -> list[GenerateRequest]:
    judge = Judge(lambda _: "")
    await scores(judge, votes)
    return judge.asked


async def test_scores_enter_rewards_as_votes_do_and_train_no_judge() -> None:
    verdicts = iter([r"\boxed{1}", r"\boxed{1}", r"\boxed{-1}"])  # 0 wins both, 1 wins one
    replies = await Pairwise.ask(Judge(lambda _: next(verdicts)), job(1), GROUP.played)
    judgement = await Pairwise.judge(None, GROUP.played, replies)
    config = parse({"algorithm": {"preset": "pairwise"}, "reward": {"kind": "pairwise"}})
    group = JudgedGroup(
        played=GROUP.played.model_copy(
            update={"group": GROUP.played.group.model_copy(update={"reward": config.reward})}
        ),
        votes=judgement.votes,
        judgement=judgement.model_copy(update={"votes": ()}),
    )
    algorithm = config.algorithm.resolved
    made = credit(group, SampleOptions.of(config, 1, {"policy": 1, "reward": 4}, 0.0))
    rewards = [[step.response.reward for step in rollout.steps] for rollout in made.rollouts]
    lam = algorithm.lam
    assert rewards == [[1 + lam] * 2, [1.0] * 2, [-1 - lam] * 2]
    assert [*made.judgements()] == []
    assert (config.votes, algorithm.train_reward_model) == (3, False)
    assert {step.score_version for v in judgement.votes for step in v.steps} == {4}
    assert judgement.votes[0].steps[0].extra == {"pairwise": [["g-01", r"\boxed{1}"]]}
