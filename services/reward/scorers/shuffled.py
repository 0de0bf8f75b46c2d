"""The placebo: the judge's own votes on a trajectory, each step with those of another one."""

from __future__ import annotations

import random

from services.reward.scorers import votes as judge
from triforge.rollout.protocols import GenerateMany
from triforge.rollout.seeds import derive_seed
from triforge.types import JudgeTask, Trajectory, TrajectoryVotes


async def score(
    trajectory: Trajectory, task: JudgeTask, generate_many: GenerateMany
) -> TrajectoryVotes:
    """Return the votes of `votes`, permuted at random among the steps that have some; errors are the same.

    How many votes of either sign a trajectory has stays as it is. What votes say about single steps is gone, so what they
    still change is not due to it.
    """
    judged = await judge.score(trajectory, task, generate_many)
    order = list(judged.steps)
    random.Random(derive_seed(task.seed, "shuffled")).shuffle(order)  # noqa: S311 (no secret)
    steps = tuple(
        other.model_copy(update={"step": own.step})
        for own, other in zip(judged.steps, order, strict=True)
    )
    return judged.model_copy(update={"steps": steps})
