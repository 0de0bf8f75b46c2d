"""Which groups differ enough to be trained on, and which tasks are rewritten.

Everything here reads the accuracy of the measured rollouts before any sample was dropped: a rollout that could not be
measured is neither a success nor a failure, and a sample without advantage still happened.

Sources: arXiv 2602.02488, Algorithm 2; RAGEN (arXiv 2504.20073, 2604.06268) for the filters by spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from triforge.algorithms.core import CoreOptions
from triforge.errors import InputError

LOW_SPREAD = "low spread"

_NO_SPREAD = 1e-8  # rounding, not information


def spread_filter(deviations: Sequence[float], algorithm: CoreOptions) -> list[bool]:
    """Which groups train the policy (`group_filter`, `filter_keep`); groups without spread never pass a filter.

    `variance_topk` keeps the share `filter_keep` of all groups whose rewards differ most, at least one. `variance_topp`
    keeps the fewest groups, largest variance first, that together hold the share `filter_keep` of all variance.
    `deviations` are those of the rewards of each group's trajectories.
    """
    if algorithm.group_filter == "none":
        return [True] * len(deviations)
    order = sorted(
        (i for i, std in enumerate(deviations) if std > _NO_SPREAD),
        key=lambda i: (-deviations[i], i),
    )
    if algorithm.group_filter == "variance_topk":
        kept = order[: max(1, math.floor(algorithm.filter_keep * len(deviations) + _NO_SPREAD))]
    else:
        kept, held = [], 0.0
        wanted = algorithm.filter_keep * sum(deviations[i] ** 2 for i in order)
        for i in order:
            if held >= wanted * (1.0 - _NO_SPREAD):
                break
            kept.append(i)
            held += deviations[i] ** 2
    return [i in set(kept) for i in range(len(deviations))]


def rewrite_direction(
    successes: int, measured: int, *, band: CoreOptions
) -> Literal["harder", "easier"] | None:
    """Which way a task should be rewritten: harder above `alpha_high`, easier below `alpha_low`, both strict.

    A task without a measured rollout is never rewritten: nothing is known about it.
    """
    check_counts(successes, measured)
    if measured == 0:
        return None
    accuracy = successes / measured
    if accuracy > band.alpha_high:
        return "harder"
    return "easier" if accuracy < band.alpha_low else None


def check_counts(successes: int, measured: int) -> None:
    """Refuse counts that cannot have been measured with an InputError."""
    if not 0 <= successes <= measured:
        raise InputError(
            f"counts: given {successes} successes of {measured} measured, expected 0 <= successes <= measured"
        )
