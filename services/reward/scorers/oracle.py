"""Planted votes: the truth about each step, right with a known chance, or +1 on everything. For experiments and `triforge judge check`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from triforge.algorithms.judge_targets.label import draw
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

    With `task.errors = "lot"` wrong votes are independent and follow from the job's seed. That is kinder than the errors of a
    model with the same accuracy, which `"repeat"`: all votes on the same action with the same result are right, or all wrong,
    in every episode and every run, so that a policy can learn to collect them.
    """
    rng = random.Random(derive_seed(task.seed, "planted"))  # noqa: S311 (a draw, not a secret)
    steps = {step.index: step for step in trajectory.steps}

    def vote(index: int, sign: Sign) -> Sign:
        step = steps[index]
        repeat = task.errors == "repeat"
        lot = draw(f"{step.action} > {step.next_observation}") if repeat else rng.random()
        if lot < task.accuracy:
            return sign
        return rng.choice((-1, 1)) if sign == 0 else -1 if sign == 1 else 1

    return _cast(
        trajectory, {i: [vote(i, sign) for _ in range(task.votes)] for i, sign in truth.items()}
    )


async def praise(
    trajectory: Trajectory,
    task: JudgeTask,
    generate_many: GenerateMany,  # noqa: ARG001 (it asks no model)
) -> TrajectoryVotes:
    """Vote +1 on every step: what votes do that say nothing."""
    return _cast(trajectory, {step.index: [1] * task.votes for step in trajectory.steps})


def _cast(trajectory: Trajectory, signs: Mapping[int, Sequence[Sign]]) -> TrajectoryVotes:
    """Return votes of these signs by step."""
    steps = tuple(
        StepVotes(
            step=index,
            prompt_ids=(),
            votes=tuple(
                Vote(value=sign, text="planted", ids=(), logprobs=(), versions=()) for sign in row
            ),
        )
        for index, row in signs.items()
    )
    return TrajectoryVotes(trajectory_id=trajectory.id, group_id=trajectory.group_id, steps=steps)
