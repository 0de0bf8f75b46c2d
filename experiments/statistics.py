"""Means with confidence intervals over seeds. Seeds are few, so all intervals are Student's t at (seeds - 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond the table the normal one is close enough.
_T = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201,
    12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 19: 2.093, 24: 2.064, 29: 2.045,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, half of its 95 % interval (infinite for one value), and how many values it is of."""

    value: float
    half: float
    count: int

    def text(self, *, sign: bool = False) -> str:
        """`0.512 ± 0.034`, with the sign in front where it is a difference."""
        half = "?" if math.isinf(self.half) else f"{self.half:.3f}"
        return f"{self.value:+.3f} ± {half}" if sign else f"{self.value:.3f} ± {half}"


def mean(values: Sequence[float]) -> Mean:
    """Mean and interval of independent values.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("a mean of no values")
    n = len(values)
    middle = math.fsum(values) / n
    if n == 1:
        return Mean(middle, math.inf, 1)
    variance = math.fsum((v - middle) ** 2 for v in values) / (n - 1)
    return Mean(middle, _quantile(n - 1) * math.sqrt(variance / n), n)


def paired(first: dict[int, float], second: dict[int, float]) -> Mean | None:
    """Mean of `first - second` over the seeds that both have; None if there is none."""
    seeds = sorted(first.keys() & second.keys())
    return mean([first[s] - second[s] for s in seeds]) if seeds else None


@dataclass(frozen=True, slots=True)
class Test:
    """A paired one-sided t test over seeds: the mean with its interval, t, and the chance of as much under no effect."""

    mean: Mean
    t: float
    p: float


def greater(first: Mapping[int, float], second: Mapping[int, float]) -> Test | None:
    """Whether `first` is above `second`, seed by seed; None below two common seeds."""
    seeds = sorted(first.keys() & second.keys())
    return _above_zero([first[s] - second[s] for s in seeds])


def trend(arms: Sequence[Mapping[int, float]]) -> Test | None:
    """Whether arms rise in their order: the linear contrast of each seed, and the t test of the contrasts above 0.

    The contrast is the slope of the values over 0, 1, 2, ... (least squares), in points an arm. Only seeds that all arms have count.
    Source: Maxwell and Delaney, Designing Experiments and Analyzing Data, chapter 13: separate error term, so that seeds which
    differ alike in all arms, and arms of unlike spread, do no harm.
    """
    middle = (len(arms) - 1) / 2
    weights = [place - middle for place in range(len(arms))]
    size = math.fsum(w * w for w in weights)
    seeds = sorted(set(arms[0]).intersection(*arms[1:]))
    return _above_zero(
        [math.fsum(w * arm[s] for w, arm in zip(weights, arms, strict=True)) / size for s in seeds]
    )


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for their number: `max over j <= i of (n - j) * p_(j)`, at most 1. Source: S. Holm, 1979."""
    found: dict[str, float] = {}
    highest = 0.0
    for place, name in enumerate(sorted(ps, key=lambda name: ps[name])):
        highest = max(highest, min(1.0, (len(ps) - place) * ps[name]))
        found[name] = highest
    return {name: found[name] for name in ps}


def t_tail(t: float, freedom: int) -> float:
    """P(T > t) for Student's t with a whole number of degrees of freedom, by its finite series.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if freedom < 1:
        raise ValueError(f"freedom: given {freedom}, expected at least 1")
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, term, total = math.cos(angle), 1.0, 0.0
    odd = freedom % 2
    for k in range((freedom - odd) // 2):
        total += term
        term *= cosine * cosine * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    total *= math.sin(angle)
    inside = 2 / math.pi * (angle + cosine * total) if odd else total  # P(|T| < |t|), signed
    return (1.0 - inside) / 2


def _above_zero(values: Sequence[float]) -> Test | None:
    if len(values) < 2:
        return None
    found = mean(values)
    error = found.half / _quantile(len(values) - 1)
    if error:
        t = found.value / error
    else:  # all alike
        t = math.copysign(math.inf, found.value) if found.value else 0.0
    return Test(found, t, t_tail(t, len(values) - 1))


def _quantile(freedom: int) -> float:
    return _T[max(k for k in _T if k <= freedom)]
