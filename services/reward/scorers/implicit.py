"""Implicit step rewards (iStar, arXiv 2509.19199): what a reward model that learns from outcomes alone thinks of a step.

    r = sum over the response's tokens of log pi_rm(token) - log pi_old(token)

The reward model is a language model, trained on pairs of trajectories of a task, a success and a failure
(`triforge.algorithms.imitation.pair_loss`, the role's objective `dpo_pair`), so no judge votes. pi_old is a rolling snapshot: the policy
that sampled the token, with the log-probability that it was sampled with. The paper's beta scales all steps alike, and the estimator
`fused` divides by their deviation, so scores are in nats. A step is scored by the weights that the reward model serves then, those
before this step's update (as the paper's code does; the paper scores after it), and the score carries their version. The record of
a step has it with the versions that sampled.
"""

from __future__ import annotations

from services.reward.scorers import SCORERS, moved
from triforge.rollout.protocols import GenerateMany
from triforge.types import JudgeTask, StepVotes, Trajectory, TrajectoryVotes


async def score(
    trajectory: Trajectory,
    task: JudgeTask,  # noqa: ARG001 (of every scorer)
    generate_many: GenerateMany,
) -> TrajectoryVotes:
    """One score a step. Raises: as `moved`."""
    found = await moved(trajectory, generate_many)
    steps = tuple(
        StepVotes(step=step, prompt_ids=(), votes=(), score=nats, score_version=version)
        for step, (nats, version) in found.items()
    )
    return TrajectoryVotes(trajectory_id=trajectory.id, group_id=trajectory.group_id, steps=steps)


SCORERS.add("implicit", score)
