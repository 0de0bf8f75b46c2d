"""Progress Advantage (arXiv 2606.26080): how much likelier than the reference the policy finds its own response.

    L = sum over the response's tokens of log pi(token) - log pi_ref(token)

No label and no trained judge: what training has raised counts as progress. The policy's log-probabilities are those that
the tokens were sampled with; the reference's come from the reward model's service, which serves the weights that the policy
started from and scores each segment of the trajectory as one prompt.

A score becomes votes by its level: pi / (pi + pi_ref) = 1 / (1 + exp(-L)) of the m votes are +1, rounded, and the others -1.
With one vote that is the sign of L, with more the mean vote follows tanh(L / 2) in steps of 2 / m. Where the policy has not moved all
votes are 0: the step is judged, and the outcome alone credits it.
"""

from __future__ import annotations

from math import tanh
from typing import Final

from services.reward.scorers import log_ratios
from triforge.rollout.protocols import GenerateMany
from triforge.types import JudgeTask, StepVotes, Trajectory, TrajectoryVotes, Vote

UNMOVED: Final = 0.01
"""Nats. Below it policy and reference say the same but for rounding, as before the first update: the votes are 0."""


async def score(
    trajectory: Trajectory, task: JudgeTask, generate_many: GenerateMany
) -> TrajectoryVotes:
    """Cast m votes a step by the log-ratio of its response. Raises: as `log_ratios`."""
    found = await log_ratios(trajectory, generate_many)
    steps = tuple(
        StepVotes(step=step, prompt_ids=(), votes=votes_of(-nats, task.votes))
        for step, (nats, _) in found.items()
    )
    return TrajectoryVotes(trajectory_id=trajectory.id, group_id=trajectory.group_id, steps=steps)


def votes_of(ratio: float, count: int) -> tuple[Vote, ...]:
    """Return a log-ratio in nats as votes, those of +1 first; their text is the ratio."""
    plus = round(count * (1.0 + tanh(ratio / 2.0)) / 2.0)
    moved, text = abs(ratio) >= UNMOVED, f"{ratio:+.6f}"
    return tuple(
        Vote(
            value=0 if not moved else 1 if i < plus else -1,
            text=text, ids=(), logprobs=(), versions=(),
        )
        for i in range(count)
    )  # fmt: skip
