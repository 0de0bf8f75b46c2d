"""Planted votes: the truth about each step, right with a known chance. For experiments and tests, no judge is that good."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Literal

from triforge.errors import RewardError
from triforge.rollout.protocols import GenerateMany
from triforge.rollout.seeds import derive_seed
from triforge.types import JudgeTask, StepVotes, Trajectory, TrajectoryVotes, Vote

Sign = Literal[-1, 0, 1]


async def score(
    trajectory: Trajectory,
    task: JudgeTask,
    generate_many: GenerateMany,  # noqa: ARG001 (it asks no model)
) -> TrajectoryVotes:
    """Plant votes by the environment's own labels; RewardError if it labels no step."""
    labels = {step.index: step.label for step in trajectory.steps if step.label is not None}
    if not labels:
        raise RewardError(f"{trajectory.id}: reward.kind = 'oracle' needs labels; no step has one")
    return planted(trajectory, task, labels)


def planted(trajectory: Trajectory, task: JudgeTask, truth: Mapping[int, Sign]) -> TrajectoryVotes:
    """Cast m votes a step, each the truth with chance `task.accuracy`, else the opposite, and of 0 a sign by lot.

    Wrong votes are independent and follow from the job's seed. That is kinder than the errors of a model with the same
    accuracy, which repeat themselves.
    """
    draw = random.Random(derive_seed(task.seed, "planted"))  # noqa: S311 (a draw, not a secret)

    def vote(sign: Sign) -> Vote:
        if draw.random() >= task.accuracy:
            sign = draw.choice((-1, 1)) if sign == 0 else -1 if sign == 1 else 1
        return Vote(value=sign, text="planted", ids=(), logprobs=(), versions=())

    steps = tuple(
        StepVotes(step=index, prompt_ids=(), votes=tuple(vote(sign) for _ in range(task.votes)))
        for index, sign in truth.items()
    )
    return TrajectoryVotes(trajectory_id=trajectory.id, group_id=trajectory.group_id, steps=steps)
