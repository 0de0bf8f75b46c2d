"""Teachers of a judge: what the arms differ by, whose votes become the teacher's word, and a run that learns from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.loop import play
from experiments.record import Models
from experiments.teachers import ARMS, STUDY, Members, target
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.judge_targets import Judged
from triforge.algorithms.registry import NoOptions
from triforge.config import parse
from triforge.rollout.protocols import GenerateMany
from triforge.testing import FakeGenerate
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    JudgeTask,
    Outcome,
    Sampling,
    Segment,
    Step,
    Trajectory,
)

MODELS = {"policy": "p", "reward": "j", "rewriter": "r"}
STEPS = tuple(
    Step(index=n, observation=f"o{n}", response="a", action="a", next_observation=f"o{n + 1}", start=0, end=1)
    for n in range(2)
)  # fmt: skip
ROLLOUT = Trajectory(
    id="g-00", group_id="g", index=0, task_id="t", task_version=0, instruction="win", steps=STEPS,
    segments=(Segment(ids=(1,), logprobs=(0.0,), versions=()),), outcome=Outcome(value=1),
)  # fmt: skip
TASK = JudgeTask(
    trajectory_id="g-00", group_id="g", run_id="r", votes=3, seed=7, deadline_s=9.0, prompt="terse",
    sampling=Sampling(max_new_tokens=9),
)  # fmt: skip


def voter(*signs: int) -> GenerateMany:
    """Return a judge that gives one step after the other these votes."""
    ask = FakeGenerate([rf"\boxed{{{sign}}}" for sign in signs])

    async def many(requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        return [await ask(request) for request in requests]

    return many


def test_arms_differ_by_what_votes_and_labels_teach_none() -> None:
    documents = {name: STUDY.full.document(arm, 967, MODELS) for name, arm in ARMS.items()}
    assert all(one["methods"]["audit"]["anchors"] == 1.0 for one in documents.values())
    configs = {name: parse(document) for name, document in documents.items()}
    taught = [name for name, one in configs.items() if one.algorithm.resolved.train_reward_model]
    assert taught == ["by_reference", "by_ensemble"]
    assert [name for name, one in configs.items() if one.reward.shows] == ["sighted", "hindsight"]
    others = [name for name, one in configs.items() if one.models.reward.path != "j"]
    assert others == ["hindsight"], "a judge that was taught to read whole episodes"
    assert {one.run for one in configs.values()} == {configs["blind"].run}, "equal episodes"


async def test_each_member_casts_one_vote_a_step() -> None:
    members = Members(lambda: [voter(1, -1), voter(1, 1), voter(-1, -1)])
    cast = await members.cast(ROLLOUT, TASK, voter(0))
    assert [[vote.value for vote in step.votes] for step in cast.steps] == [[1, 1, -1], [-1, 1, -1]]


async def test_the_mean_vote_of_the_members_is_the_target_of_the_judges_own_votes() -> None:
    members = Members(lambda: [voter(1, -1), voter(1, -1), voter(-1, -1)])
    votes = await members.teach(ROLLOUT, TASK, voter(-1, 1))
    assert [{vote.value for vote in step.votes} for step in votes.steps] == [{-1}, {1}]
    judged = Judged(outcomes=[1], votes=[[[-1], [1]]], extra=[[step.extra for step in votes.steps]])
    assert target.function(judged, CoreOptions(), NoOptions()) == [[1 / 3, -1.0]]


def test_a_judge_learns_from_itself_with_a_solution_in_sight(models: Models) -> None:
    settings = replace(STUDY.quick, steps=1)
    (step,) = play("by_reference", ARMS["by_reference"], 7, settings, models).steps
    assert step["rows/reward"] > 0
