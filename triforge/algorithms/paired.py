"""Means over few values, such as the seeds of an experiment, with 95 % intervals and tests by Student's t."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from triforge.errors import InputError


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
    return Mean(middle, t_quantile(n - 1) * math.sqrt(variance / n), n)


def count_to_tell(one: Mean, *, most: int = 99) -> int | None:
    """Return how many values of the same mean and spread have an interval without 0; None if more than `most`, or for one value."""
    if one.count < 2:
        return None
    spread = one.half / t_quantile(one.count - 1) * math.sqrt(one.count)
    counts = range(one.count + 1, most + 1)
    return next((n for n in counts if t_quantile(n - 1) * spread / math.sqrt(n) < abs(one.value)), None)  # fmt: skip


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Mean | None:
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
    return above_zero([first[s] - second[s] for s in seeds])


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference of two arms, and p of a two-sided test after Holm's correction."""

    mean: Mean
    p: float

    @property
    def word(self) -> str:
        """The decision at the level of 5 %."""
        if self.p >= 0.05:
            return "undecided"
        return "better" if self.mean.value > 0 else "worse"


def against_first(arms: Mapping[str, Mapping[int, float]]) -> dict[str, Difference]:
    """Compare each arm with the first one, seed by seed; an arm without a common seed is left out."""
    (_, first), *others = arms.items()
    tests = {name: greater(values, first) for name, values in others}
    ps = holm({name: 2 * min(test.p, 1 - test.p) for name, test in tests.items() if test})
    means = {name: paired(values, first) for name, values in others}
    return {name: Difference(one, ps.get(name, 1.0)) for name, one in means.items() if one}


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


@cache
def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t: half of a 95 % interval in standard errors."""
    low, high = 0.0, 16.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 0.025 else (low, middle)
    return high


def above_zero(values: Sequence[float]) -> Test | None:
    """Whether the mean of values is above 0; None below two values. Values that are all alike get a sign test, as t knows no spread."""
    if len(values) < 2:
        return None
    found = mean(values)
    error, sign = found.half / t_quantile(len(values) - 1), math.copysign(1.0, found.value)
    if error > 1e-9:
        t = found.value / error
        return Test(found, t, t_tail(t, len(values) - 1))
    if abs(found.value) < 1e-9:
        return Test(found, 0.0, 0.5)
    p = 0.5 ** len(values)
    return Test(found, sign * math.inf, p if sign > 0 else 1.0 - p)


def sign_test(wins: int, losses: int) -> float:
    """Return the chance that a fair coin gives so many wins or more (the exact one-sided sign test); ties count in neither."""
    n = wins + losses
    return sum(math.comb(n, k) for k in range(wins, n + 1)) / float(2**n)


def pass_at(k: int, tried: int, solved: int) -> float:
    """Chance that k of the tries, drawn without repetition, hold a solution: `1 - C(n - c, k) / C(n, k)`.

    Source: M. Chen et al., arXiv 2107.03374, equation 1; without bias, where `1 - (1 - c / n) ** k` is too small.
    """
    if not (0 <= solved <= tried and 1 <= k <= tried):
        raise InputError(
            f"pass@{k}: given {solved} of {tried} solved, expected 0 <= solved <= tried and 1 <= k <= tried"
        )
    return 1.0 - math.comb(tried - solved, k) / math.comb(tried, k)
