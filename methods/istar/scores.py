"""Implicit step rewards: how much more likely the response of a step is under the reward model than under the policy that sampled it.

    r = sum over the response's tokens of log pi_rm(token) - log pi_old(token)

The reward model is a language model. It is trained on pairs of trajectories of a task, a success and a failure (the job
`dpo_pair`), so there are no votes. pi_old is a rolling snapshot: the policy that sampled the token, with the log-probability at
sampling. The paper's beta scales all steps alike, and the estimator `fused` divides by their deviation, so scores are in nats.
A step is scored by the weights that the reward model serves then, before this step's update (as in the paper's code; the paper
scores after it). The score carries their version.
"""

from __future__ import annotations

from services.reward.scorers import log_ratios
from triforge.rollout.protocols import GenerateMany
from triforge.types import JudgeTask, StepVotes, Trajectory, TrajectoryVotes


async def score(
    trajectory: Trajectory,
    task: JudgeTask,  # noqa: ARG001 (of every scorer)
    generate_many: GenerateMany,
) -> TrajectoryVotes:
    """Return one score a step. Raises: as `log_ratios`."""
    ratios = await log_ratios(trajectory, generate_many)
    steps = tuple(
        StepVotes(step=step, prompt_ids=(), votes=(), score=nats, score_version=version)
        for step, (nats, version) in ratios.items()
    )
    return TrajectoryVotes(trajectory_id=trajectory.id, group_id=trajectory.group_id, steps=steps)
