"""Intervals of measured shares."""

from __future__ import annotations

import math

_Z = 1.96  # two-sided 95 %


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, _Z * _Z
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = (
        _Z
        * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
        / (1 + z2 / trials)
    )
    return max(0.0, middle - half), min(1.0, middle + half)
