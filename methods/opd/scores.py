"""Scores of a teacher: how much likelier it finds each token of a response than the policy that sampled it.

    d = log p_teacher(token) - log p_policy(token)

In the mean over the policy's samples that is minus the reverse KL of the policy from the teacher. The teacher is the model that the
reward model's service serves. It scores each segment of a trajectory, prompt and responses, as one prompt, so that its engine
computes shared prefixes once. The log-probability of the policy is that at sampling.
"""

from __future__ import annotations

from math import fsum

from services.reward.scorers import token_log_ratios
from triforge.rollout.protocols import GenerateMany
from triforge.types import JudgeTask, StepVotes, Trajectory, TrajectoryVotes


async def score(
    trajectory: Trajectory, task: JudgeTask, generate_many: GenerateMany
) -> TrajectoryVotes:
    """Return the mean of d over each step's tokens as its score, and d of each token in `extra`. Raises: as `token_log_ratios`."""
    ratios = await token_log_ratios(trajectory, generate_many)
    steps = tuple(
        StepVotes(
            step=step, prompt_ids=(), votes=(), score=fsum(tokens) / len(tokens), score_version=version,
            extra={task.scorer: list(tokens)},
        )
        for step, (tokens, version) in ratios.items()
        if tokens
    )  # fmt: skip
    return TrajectoryVotes(trajectory_id=trajectory.id, group_id=trajectory.group_id, steps=steps)
