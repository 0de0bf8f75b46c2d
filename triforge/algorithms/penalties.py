"""What is taken off a step's reward beside outcome and votes: invalid actions, steps, turns and tokens that were used up.

Sources: DAPO (arXiv 2503.14476) for overlong responses; RAGEN (arXiv 2504.20073) and iStar (arXiv 2509.19199) for
invalid actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from triforge.algorithms.core import CoreOptions


@dataclass(frozen=True, slots=True)
class Acted:
    """What penalties read of a step: how many tokens the policy wrote, and whether its action was a possible one."""

    tokens: int
    valid: bool


def overlong_penalty(length: int, *, limit: int, buffer: int) -> float:
    """0 up to `limit - buffer` tokens, from there linear down to -1 at `limit`, -1 beyond; a limit of 0 is none."""
    if limit == 0:
        return 0.0
    if length >= limit:
        return -1.0
    return min(0.0, (limit - buffer - length) / max(buffer, 1))


def step_penalties(steps: Sequence[Acted], algorithm: CoreOptions) -> list[float]:
    """What is added to the reward of each step of a trajectory for what the step did, never above 0."""
    invalid = algorithm.invalid_action_penalty
    return [-algorithm.step_cost - (0.0 if s.valid else invalid) for s in steps]


def end_penalty(steps: Sequence[Acted], *, max_steps: int, algorithm: CoreOptions) -> float:
    """What is taken off a trajectory that had `max_steps` turns for what it used up, never above 0."""
    if not steps:
        return 0.0
    limit, buffer = algorithm.overlong_limit, algorithm.overlong_buffer
    found = overlong_penalty(sum(s.tokens for s in steps), limit=limit, buffer=buffer)
    return found - (algorithm.turn_limit_penalty if len(steps) >= max_steps else 0.0)


def placed_penalties(
    steps: Sequence[float], end: float, rewarded: Sequence[int], *, whole: bool, summed: bool
) -> list[float]:
    """Penalties put on the `rewarded` steps, ascending, so that none is lost with a step that nobody judged.

    That of the `end` stands on the last of them. Where trajectories are compared as a `whole` every step brings the sum of
    its trajectory; where steps are `summed` up, what one without a reward did stands on the one before it.
    """
    if whole:
        return [math.fsum(steps) + end] * len(steps)
    found = list(steps)
    for i, brought in enumerate(steps) if summed else ():
        before = [r for r in rewarded if r < i]
        if i not in rewarded and before:
            found[before[-1]] += brought
    if rewarded:
        found[rewarded[-1]] += end
    return found
