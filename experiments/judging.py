"""Votes: by the reward model, or planted from the environment's own labels."""

from __future__ import annotations

import random
from typing import Literal

from triforge.rollout.protocols import GenerateMany
from triforge.rollout.seeds import derive_seed
from triforge.types import JudgeTask, Step, StepVotes, Trajectory, TrajectoryVotes, Vote


class PlantedJudge:
    """A step scorer that knows the label of each step and is right with a fixed chance, vote by vote.

    The errors are independent, which is kinder than those of a model with the same accuracy. Its votes have no tokens and
    cannot train anything.

    Args:
        right: chance that a vote equals the label.
    """

    def __init__(self, right: float) -> None:
        self._right = right

    async def __call__(
        self,
        trajectory: Trajectory,
        task: JudgeTask,
        generate_many: GenerateMany,  # noqa: ARG002 (it asks no model)
    ) -> TrajectoryVotes:
        """Vote on every labelled step."""
        draw = random.Random(derive_seed(task.seed, "planted"))  # noqa: S311 (a draw, not a secret)
        return TrajectoryVotes(
            trajectory_id=trajectory.id,
            group_id=trajectory.group_id,
            steps=tuple(
                StepVotes(
                    step=step.index,
                    prompt_ids=(),
                    votes=tuple(self._vote(step, draw) for _ in range(task.votes)),
                )
                for step in trajectory.steps
                if step.label is not None
            ),
        )

    def _vote(self, step: Step, draw: random.Random) -> Vote:
        assert step.label is not None
        wrong: Literal[-1, 1] = 1 if step.label == -1 else -1
        value = step.label if draw.random() < self._right else wrong
        return Vote(value=value, text="planted", ids=(), logprobs=(), versions=())
