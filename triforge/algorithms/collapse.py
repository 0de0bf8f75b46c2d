"""Whether a policy collapses: it comes to say the same whatever it is asked, or comes to earn the same whatever it tries.

Entropy alone can look healthy while reasoning has become a template: the thoughts Z still differ from one another, and no longer
depend on the prompt X. What is left of that dependence is estimated by scoring every thought after every prompt:

    I(X; Z) = mean over thoughts of [log p(z | its own x) - log mean over prompts of p(z | x)]      at most log(prompts)

Source: RAGEN (arXiv 2504.20073), whose in-group spread of rewards falls first and whose gradient norm jumps last, and RAGEN-2
(arXiv 2604.06268), whose estimate this is, as is the rule by which a run is ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from triforge.errors import InputError


@dataclass(frozen=True, slots=True)
class Dependence:
    """How much thoughts depend on their prompts: nats, and the share of them that is likeliest after its own prompt (ties share)."""

    information: float
    retrieved: float


def dependence(log_likelihoods: Sequence[Sequence[float]]) -> Dependence:
    """Of a square table: row i is `log p(thought i | prompt j)` for every j, thought i being that of prompt i."""
    count = len(log_likelihoods)
    if count < 2 or any(len(row) != count for row in log_likelihoods):
        raise InputError(
            f"log_likelihoods: given rows of {[len(row) for row in log_likelihoods]}, expected a square table of two prompts "
            "at least"
        )
    gained, found = [], []
    for own, row in enumerate(log_likelihoods):
        top = max(row)
        marginal = top + math.log(math.fsum(math.exp(value - top) for value in row) / count)
        gained.append(row[own] - marginal)
        found.append((row[own] == top) / row.count(top))
    return Dependence(fmean(gained), fmean(found))


def left(values: Sequence[float], window: int, *, recent: int) -> float | None:
    """The mean of the `recent` newest values as a share of that of the `window` first ones; None while it may not be told.

    It is told as soon as there are more values than the first ones.
    """
    first = fmean(values[:window]) if len(values) > window else 0.0
    return fmean(values[-recent:]) / first if first > 0.0 else None


def jump(values: Sequence[float], window: int) -> float | None:
    """The newest value by the median of the `window` before it; None before there are as many."""
    before = median(values[-window - 1 : -1]) if len(values) > window else 0.0
    return values[-1] / before if before > 0.0 else None
