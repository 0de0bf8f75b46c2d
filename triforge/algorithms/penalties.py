"""Penalties on rewards: for invalid actions, steps, turns and tokens.

Sources: DAPO (arXiv 2503.14476) for overlong responses; RAGEN (arXiv 2504.20073) and iStar (arXiv 2509.19199) for
invalid actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from triforge.algorithms.core import CoreOptions
from triforge.algorithms.samples import Rollout


def overlong_penalty(length: int, *, limit: int, buffer: int) -> float:
    """Return 0 up to `limit - buffer` tokens, from there linear down to -1 at `limit`, -1 beyond; a limit of 0 is none."""
    if limit == 0:
        return 0.0
    if length >= limit:
        return -1.0
    return min(0.0, (limit - buffer - length) / max(buffer, 1))


def charge(rollouts: Iterable[Rollout], algorithm: CoreOptions) -> None:
    """Annotate steps and rollouts with their penalties, never above 0."""
    for rollout in rollouts:
        for step in rollout.steps:
            invalid = 0.0 if step.action_valid else algorithm.invalid_action_penalty
            step.penalty = -algorithm.step_cost - invalid
        if rollout.steps:
            limit, buffer = algorithm.overlong_limit, algorithm.overlong_buffer
            tokens = sum(step.response.tokens for step in rollout.steps)
            spent = algorithm.turn_limit_penalty if len(rollout.steps) >= rollout.max_steps else 0.0
            rollout.penalty = overlong_penalty(tokens, limit=limit, buffer=buffer) - spent


def placed_penalties(
    steps: Sequence[float], end: float, rewarded: Sequence[int], *, whole: bool, summed: bool
) -> list[float]:
    """Return the penalties of all steps, moved to the `rewarded` ones (ascending), so that none is lost with an unjudged step.

    That of the `end` stands on the last of them. Where trajectories are compared as a `whole` every step brings the sum of
    its trajectory; where steps are `summed` up, that of a step without a reward stands on the one before it.
    """
    if whole:
        return [math.fsum(steps) + end] * len(steps)
    moved = list(steps)
    for i, brought in enumerate(steps) if summed else ():
        before = [r for r in rewarded if r < i]
        if i not in rewarded and before:
            moved[before[-1]] += brought
    if rewarded:
        moved[rewarded[-1]] += end
    return moved
