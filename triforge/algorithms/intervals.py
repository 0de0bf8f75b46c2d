"""Intervals of measured shares, and the quantile of the normal distribution that all our 95 % intervals begin with."""

from __future__ import annotations

import math

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """95 % interval of a share; (0, 1) without trials. Source: E. B. Wilson, JASA 22 (1927).

    Args:
        successes: of the trials; need not be whole, where trials are weighted.
        trials: how many.
    """
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, Z95 * Z95
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = (
        Z95
        * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
        / (1 + z2 / trials)
    )
    return max(0.0, middle - half), min(1.0, middle + half)
