"""The environment's own label of each step, planted with a known accuracy: for experiments and tests, no judge is that good."""

from __future__ import annotations

import random
from typing import Literal

from services.reward.scorers import SCORERS
from triforge.errors import RewardError
from triforge.rollout.protocols import GenerateMany
from triforge.rollout.seeds import derive_seed
from triforge.types import JudgeTask, StepVotes, Trajectory, TrajectoryVotes, Vote


async def score(
    trajectory: Trajectory,
    task: JudgeTask,
    generate_many: GenerateMany,  # noqa: ARG001 (it asks no model)
) -> TrajectoryVotes:
    """Cast m votes a labelled step, each the label with chance `task.accuracy` and its opposite otherwise.

    Wrong votes are independent and follow from the job's seed. That is kinder than the errors of a model with the same
    accuracy, which repeat themselves.

    Raises:
        RewardError: the environment labels no step.
    """
    draw = random.Random(derive_seed(task.seed, "oracle"))  # noqa: S311 (a draw, not a secret)
    labels = [(step.index, step.label) for step in trajectory.steps if step.label is not None]
    if not labels:
        raise RewardError(
            f"{trajectory.id}: reward.kind = 'oracle' needs labels, and no step has one"
        )
    return TrajectoryVotes(
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        steps=tuple(
            StepVotes(
                step=index,
                prompt_ids=(),
                votes=tuple(_vote(label, task.accuracy, draw) for _ in range(task.votes)),
            )
            for index, label in labels
        ),
    )


SCORERS.add("oracle", score)


def _vote(label: Literal[-1, 1], accuracy: float, draw: random.Random) -> Vote:
    wrong: Literal[-1, 1] = 1 if label == -1 else -1
    value = label if draw.random() < accuracy else wrong
    return Vote(value=value, text="oracle", ids=(), logprobs=(), versions=())
