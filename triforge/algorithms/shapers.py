"""What is taken off a step's reward beside outcome and votes: invalid actions, steps, turns and tokens that were used up.

Sources: DAPO (arXiv 2503.14476) for overlong responses; RAGEN (arXiv 2504.20073) and iStar (arXiv 2509.19199) for
invalid actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triforge.algorithms.presets import Preset
from triforge.errors import InputError


@dataclass(frozen=True, slots=True)
class Acted:
    """What shaping reads of a step: how many tokens the policy wrote, and whether its action was a possible one."""

    tokens: int
    valid: bool


def overlong_penalty(length: int, *, limit: int, buffer: int) -> float:
    """0 up to `limit - buffer`, from there linear down to -1 at `limit`, -1 beyond; 0 throughout without a limit.

    Args:
        length: tokens.
        limit: at which the whole penalty falls due; 0 is none.
        buffer: tokens before it, in which the penalty rises.

    Raises:
        InputError: `buffer` is not in [0, limit].
    """
    if not 0 <= buffer <= max(limit, 0):
        raise InputError(f"buffer: given {buffer}, expected 0 to the limit of {limit}")
    if limit == 0:
        return 0.0
    if length >= limit:
        return -1.0
    return min(0.0, (limit - buffer - length) / max(buffer, 1))


def shaped(steps: Sequence[Acted], *, preset: Preset) -> list[float]:
    """What is added to the reward of each step of a trajectory for what the step did, never above 0.

    Args:
        steps: of one trajectory.
        preset: reads `invalid_action_penalty` and `step_cost`.
    """
    return [-preset.step_cost - (0.0 if s.valid else preset.invalid_action_penalty) for s in steps]


def used_up(steps: Sequence[Acted], *, max_steps: int, preset: Preset) -> float:
    """What is taken off a trajectory for what it used up, never above 0.

    Args:
        steps: of the trajectory.
        max_steps: turns that it had.
        preset: reads `turn_limit_penalty`, `overlong_limit`, `overlong_buffer`.
    """
    if not steps:
        return 0.0
    tokens = sum(s.tokens for s in steps)
    found = overlong_penalty(tokens, limit=preset.overlong_limit, buffer=preset.overlong_buffer)
    return found - (preset.turn_limit_penalty if len(steps) >= max_steps else 0.0)
