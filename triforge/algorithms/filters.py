"""Filters of groups to train on, by accuracy and by spread, and the direction in which tasks are rewritten.

All of them read the accuracy of the measured rollouts before any sample is dropped: an unmeasured rollout is neither a
success nor a failure, and samples without advantage count.

Sources: arXiv 2602.02488, Algorithm 2; RAGEN (arXiv 2504.20073, 2604.06268) for the filters by spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from triforge.algorithms.advantages import Rows, mean_and_deviation
from triforge.algorithms.core import Band, CoreOptions
from triforge.errors import InputError

NO_MEASUREMENT = "no measured rollout"
OUTSIDE_POLICY_BAND = "outside policy band"
OUTSIDE_REWARD_BAND = "outside reward band"
ONE_SIDED = "one outcome only"
LOW_SPREAD = "low spread"

NO_SPREAD = 1e-8  # rounding, not information


def in_band(successes: int, measured: int, band: Band | None, *, reason: str) -> str | None:
    """Return `reason` unless `low <= successes / measured <= high`; no band keeps every measured task."""
    if measured == 0:
        return NO_MEASUREMENT
    return None if band is None or band[0] <= successes / measured <= band[1] else reason


def policy_filter(
    successes: int, measured: int, algorithm: CoreOptions, *, scores: Sequence[float] = ()
) -> str | None:
    """Return why the task does not train the policy (`policy_band`, `mixed_groups_only`); None if it does.

    Groups end alike when their `scores` do, or without scores when all or none succeed.
    """
    why = in_band(successes, measured, algorithm.policy_band, reason=OUTSIDE_POLICY_BAND)
    same = successes in (0, measured) and alike(scores)
    return ONE_SIDED if why is None and algorithm.mixed_groups_only and same else why


def alike(scores: Sequence[float]) -> bool:
    """Return whether scores differ by rounding only."""
    return max(scores, default=0.0) - min(scores, default=0.0) <= NO_SPREAD


def reward_filter(successes: int, measured: int, algorithm: CoreOptions) -> str | None:
    """Return why the task's votes do not train the reward model (`reward_band`; with stacked bands also the policy's)."""
    why = policy_filter(successes, measured, algorithm) if algorithm.bands == "stacked" else None
    return why or in_band(successes, measured, algorithm.reward_band, reason=OUTSIDE_REWARD_BAND)


def reward_deviation(rewards: Rows, *, summed: bool) -> float:
    """Return the standard deviation of the trajectories' rewards, each the sum of its measured steps, or their mean; 0 without any."""
    measured = [[r for r in steps if r is not None] for steps in rewards]
    totals = [math.fsum(row) / (1 if summed else len(row)) for row in measured if row]
    return mean_and_deviation(totals)[1] if totals else 0.0


def spread_filter(deviations: Sequence[float], algorithm: CoreOptions) -> list[bool]:
    """Return which groups train the policy (`group_filter`, `filter_keep`); groups without spread never pass a filter.

    `variance_topk` keeps the share `filter_keep` of all groups whose rewards differ most, at least one. `variance_topp`
    keeps the fewest groups, largest variance first, that together hold the share `filter_keep` of all variance, less
    `filter_slack`.
    `deviations` are those of the rewards of each group's trajectories.
    """
    if algorithm.group_filter == "none":
        return [True] * len(deviations)
    order = sorted(
        (i for i, std in enumerate(deviations) if std > NO_SPREAD),
        key=lambda i: (-deviations[i], i),
    )
    if algorithm.group_filter == "variance_topk":
        kept = order[: max(1, math.floor(algorithm.filter_keep * len(deviations) + NO_SPREAD))]
    else:
        kept, held = [], 0.0
        wanted = algorithm.filter_keep * sum(deviations[i] ** 2 for i in order)
        wanted -= algorithm.filter_slack
        for i in order:
            if held >= wanted * (1.0 - NO_SPREAD):
                break
            kept.append(i)
            held += deviations[i] ** 2
    return [i in set(kept) for i in range(len(deviations))]


def kept_scale(kept: Sequence[bool], algorithm: CoreOptions) -> float:
    """Return the factor of the loss where a filter kept a part of the groups (`filter_scale`)."""
    share = sum(kept) / len(kept) if kept else 1.0
    return {"none": 1.0, "linear": share, "sqrt": math.sqrt(share)}[algorithm.filter_scale]


def rewrite_direction(
    successes: int, measured: int, *, band: CoreOptions
) -> Literal["harder", "easier"] | None:
    """Return the direction in which a task should be rewritten: harder above `alpha_high`, easier below `alpha_low`, both strict.

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
    """Reject impossible counts with an InputError."""
    if not 0 <= successes <= measured:
        raise InputError(
            f"counts: given {successes} successes of {measured} measured, expected 0 <= successes <= measured"
        )
