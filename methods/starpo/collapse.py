"""Measures of collapse: the policy answers every prompt alike, or its rollouts all earn the same.

Entropy alone can look healthy while reasoning has become a template: the thoughts Z still differ from one another, but no longer
depend on the prompt X. Their mutual information is estimated by scoring every thought after every prompt:

    I(X; Z) = mean over thoughts of [log p(z | its own x) - log mean over prompts of p(z | x)]      at most log(prompts)

Sources: RAGEN (arXiv 2504.20073): the in-group spread of rewards falls first, the gradient norm jumps last. RAGEN-2 (arXiv
2604.06268): this estimate, and the rule that ends a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from triforge.errors import InputError


@dataclass(frozen=True, slots=True)
class Dependence:
    """How much thoughts depend on their prompts: nats, and the share of thoughts that are likeliest after their own prompt (ties share)."""

    information: float
    retrieved: float


def dependence(log_likelihoods: Sequence[Sequence[float]]) -> Dependence:
    """Return the dependence in a square table: row i is `log p(thought i | prompt j)` for every j; thought i is of prompt i."""
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


def left(values: Sequence[float], window: int) -> float | None:
    """Return the mean of the `window` newest values as a share of the mean of the first `window` values.

    Returns None while there are only the first values.
    """
    first = fmean(values[:window]) if len(values) > window else 0.0
    return fmean(values[-window:]) / first if first > 0.0 else None


def jump(values: Sequence[float], window: int) -> float | None:
    """Return the newest value over the median of the `window` values before it; None while there are fewer."""
    before = median(values[-window - 1 : -1]) if len(values) > window else 0.0
    return values[-1] / before if before > 0.0 else None
