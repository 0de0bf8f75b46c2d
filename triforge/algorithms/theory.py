"""How informative the votes are: p_plus, p_minus, mu and the f-weights, estimated from played groups.

Source: arXiv 2602.02488, section 2.3 and appendix A. There, p_plus is the chance that a vote on a step of a successful
trajectory is +1, p_minus the chance that a vote on a step of a failed one is -1, and mu = p_plus + p_minus: the votes of
a step tell success from failure exactly when mu > 1 (Theorem 1). The f-weights say how strongly the reward model is
taught each of the two (Theorem 2): f_plus = P(S = 1) on successes, f_minus = P(S = -1) on failures; their norms over
the trajectories of a task drift apart when the task is too easy or too hard.

What counts as one observation: votes on one trajectory are not independent, nor are trajectories of one task. So a
trajectory enters once, with the mean over its steps of the mean vote, and every interval is a jackknife over groups:
each group is left out in turn, and the spread of the results, with Student's t at the number of groups that hold the
rarer outcome, gives 95 %. No random numbers are involved. With fewer than `FEWEST` such groups the interval is the
whole range, which says: nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triforge.algorithms.paired import mean, t_quantile
from triforge.errors import InputError

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution
FEWEST = 4  # groups that hold an outcome, below which there is no interval
# [11] as `_sums` orders them, or [groups, 11]; [kinds, 2] in `share_interval`
Sums = NDArray[np.float64]
Statistic = Callable[[Sums], float]


@dataclass(frozen=True, slots=True)
class GroupVotes:
    """Statistics of the votes in one group: counts and sums over its measured and judged trajectories.

    Attributes:
        successes, failures: trajectories with the outcome +1, and with -1.
        plus: sum over successes of `(1 + mean vote) / 2`.
        minus: sum over failures of `(1 - mean vote) / 2`.
        plus_square: sum over successes of the mean over steps of f_plus squared.
        minus_square: the same of f_minus over failures.
        pairs: of a success's and a failure's judged steps of the same index.
        wins: pairs in which the mean vote on the success is the higher one.
    """

    successes: int
    failures: int
    plus: float
    minus: float
    plus_square: float
    minus_square: float
    pairs: int
    wins: int

    @property
    def within(self) -> tuple[float, float]:
        """(numerator, weight) of the group in `mu_within`; (0, 0) with one outcome only."""
        if not (self.successes and self.failures):
            return 0.0, 0.0
        weight = self.successes * self.failures / (self.successes + self.failures)
        return weight * (self.plus / self.successes + self.minus / self.failures), weight

    @property
    def praise(self) -> tuple[float, float]:
        """(sum over trajectories of `(1 + mean vote) / 2`, trajectories)."""
        return self.plus + self.failures - self.minus, self.successes + self.failures


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Theory:
    """Estimates from some groups. What the groups do not hold is None.

    Attributes:
        p_plus, p_minus: over successful, and over failed, trajectories of all groups.
        mu: p_plus + p_minus. Also moved by which tasks are hard: a judge that scolds on hard tasks scores here.
        mu_within: the same among trajectories of one task, mean over the groups with both outcomes, weighted by
            `successes * failures / (successes + failures)` (Mantel and Haenszel): what advantages can use.
        precision: A of Theorem 1 as observed: share of won pairs.
        f_plus, f_minus: norms over a group's trajectories: root of the mean square over groups.
        f_ratio: f_plus / f_minus; Theorem 2 wants it bounded.
        one_sided: share of groups with one outcome only: they teach the reward model one of the two terms.
        groups: how many groups have judged trajectories.
    """

    p_plus: Estimate | None
    p_minus: Estimate | None
    mu: Estimate | None
    mu_within: Estimate | None
    precision: Estimate | None
    f_plus: Estimate | None
    f_minus: Estimate | None
    f_ratio: Estimate | None
    one_sided: float | None
    groups: int


def count_votes(
    outcomes: Sequence[int | None], votes: Sequence[Sequence[Sequence[int]]], *, lam: float = 1.0
) -> GroupVotes:
    """Count one group: outcomes, votes `[trajectory][step][vote]`, and lam for the f-weights (appendix A, remark 1).

    An unparsable vote (0) stays in the mean vote, so that it counts half for either side: Theorem 1 needs no more than
    the mean votes of the two sides. In f it is neither +1 nor -1.
    """
    if len(outcomes) != len(votes):
        raise InputError(
            f"votes: given {len(votes)} trajectories, expected {len(outcomes)}, one an outcome"
        )
    sides: dict[int, list[dict[int, Sequence[int]]]] = {1: [], -1: []}
    for outcome, steps in zip(outcomes, votes, strict=True):
        judged = {i: step for i, step in enumerate(steps) if step}
        if outcome is not None and judged:
            sides[outcome].append(judged)

    def share(side: int) -> float:
        means = [_mean([_mean(s) for s in t.values()]) for t in sides[side]]
        return math.fsum((1 + side * mean) / 2 for mean in means)

    def square(side: int) -> float:
        return math.fsum(_mean([_square(s, side, lam) for s in t.values()]) for t in sides[side])

    compared = [
        _mean(won[i]) - _mean(lost[i])
        for won in sides[1]
        for lost in sides[-1]
        for i in won.keys() & lost.keys()
    ]
    return GroupVotes(
        successes=len(sides[1]),
        failures=len(sides[-1]),
        plus=share(1),
        minus=share(-1),
        plus_square=square(1),
        minus_square=square(-1),
        pairs=len(compared),
        wins=sum(difference > 0 for difference in compared),
    )


def in_order(steps: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """(pairs in order, pairs) of steps, each with its mean vote and its label +1 or -1.

    A pair is two steps of different labels; it is in order if the better one has the higher mean vote, half if they are equal.
    """
    good, bad = ([vote for vote, label in steps if label == side] for side in (1, -1))
    wins = math.fsum((g > b) + (g == b) / 2 for g in good for b in bad)
    return wins, len(good) * len(bad)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _square(step: Sequence[int], side: int, lam: float) -> float:
    """Square of f on one step without the bias that squaring an average of few votes has.

    With k of m votes on the side, p is estimated by k / m and p squared by k (k - 1) / (m (m - 1)). One vote alone
    cannot tell p squared from p; then the larger one is taken.
    """
    m, k = len(step), sum(vote == side for vote in step)
    p, p2 = k / m, k * (k - 1) / (m * (m - 1)) if m > 1 else float(k)
    base = (1.0 - lam) / 2.0
    return base * base + 2.0 * base * lam * p + lam * lam * p2


def estimate(groups: Sequence[GroupVotes]) -> Theory:
    """Estimate everything from the groups that hold judged trajectories."""
    held = [g for g in groups if g.successes + g.failures]
    rows = np.array([_sums(g) for g in held], dtype=np.float64)
    won = sum(g.successes > 0 for g in held)
    lost = sum(g.failures > 0 for g in held)
    both = sum(g.successes > 0 and g.failures > 0 for g in held)
    return Theory(
        p_plus=_jackknife(rows, _share(1, 0), won, 1.0),
        p_minus=_jackknife(rows, _share(3, 2), lost, 1.0),
        mu=_jackknife(rows, lambda s: _over(s[1], s[0]) + _over(s[3], s[2]), min(won, lost), 2.0),
        mu_within=_jackknife(rows, _share(10, 9), both, 2.0),
        precision=_jackknife(rows, _share(5, 4), both, 1.0),
        f_plus=_jackknife(rows, lambda s: _norm(s, 6), won, math.inf),
        f_minus=_jackknife(rows, lambda s: _norm(s, 7), lost, math.inf),
        f_ratio=_ratio(rows, min(won, lost)),
        one_sided=1 - both / len(held) if held else None,
        groups=len(held),
    )


def trust(groups: Sequence[GroupVotes]) -> float:
    """How far votes deserve weight: the lower bound of `mu_within - 1`, in [0, 1]; 0 as long as nothing is known."""
    found = estimate(groups).mu_within
    return 0.0 if found is None else min(1.0, max(0.0, found.low - 1.0))


def _sums(g: GroupVotes) -> tuple[float, ...]:
    """Return the sums of which the statistics are functions."""
    n = g.successes + g.failures
    within, weight = g.within
    return (
        g.successes, g.plus, g.failures, g.minus, g.pairs, g.wins,
        g.plus_square / n, g.minus_square / n, 1.0, weight, within,
    )  # fmt: skip


def _over(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator > 0 else math.nan


def _share(numerator: int, denominator: int) -> Statistic:
    return lambda s: _over(s[numerator], s[denominator])


def _norm(s: Sums, column: int) -> float:
    return math.sqrt(max(0.0, _over(s[column], s[8])))


def _log_ratio(s: Sums) -> float:
    plus, minus = _norm(s, 6), _norm(s, 7)
    return math.log(plus / minus) if plus > 0 and minus > 0 else math.nan


def _jackknife(rows: Sums, statistic: Statistic, groups: int, highest: float) -> Estimate | None:
    """Return a statistic in [0, highest] of the summed rows with its jackknife interval; `groups` carry information."""
    half = _half_width(rows, statistic, groups)
    if half is None:
        return None
    value = statistic(rows.sum(axis=0))
    return Estimate(value, max(0.0, value - half), min(highest, value + half))


def _ratio(rows: Sums, groups: int) -> Estimate | None:
    """Return the logarithm of the ratio of the norms; None if one of them is 0."""
    half = _half_width(rows, _log_ratio, groups)
    if half is None:
        return None
    value = _log_ratio(rows.sum(axis=0))
    high = math.exp(value + half) if value + half < 700 else math.inf
    return Estimate(math.exp(value), math.exp(value - half), high)


def _half_width(rows: Sums, statistic: Statistic, groups: int) -> float | None:
    """Half of the 95 % interval; infinite when too little is known, None when there is no value."""
    total = rows.sum(axis=0)
    if not len(rows) or math.isnan(statistic(total)):
        return None
    if groups < FEWEST:
        return math.inf
    return t_quantile(groups - 1) * math.sqrt(_variance(rows, statistic))


def _variance(rows: Sums, statistic: Statistic) -> float:
    """Return the jackknife variance of a statistic of the summed rows."""
    total, n = rows.sum(axis=0), len(rows)
    without = np.array([statistic(total - row) for row in rows])
    return (n - 1) / n * float(((without - without.mean()) ** 2).sum())


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of at least `FEWEST` values, by Student's t."""
    found = mean(values)
    return found.value - found.half, found.value + found.half


def score_interval(scores: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of a mean score: Wilson's if each is 1 or 0, else Student's t, not below 0 where no score is.

    None for fewer than `FEWEST` scores, and for equal ones, which do not tell how much they vary.
    """
    if all(score in (0.0, 1.0) for score in scores):
        return wilson(math.fsum(scores), len(scores))
    if len(scores) < FEWEST or min(scores) == max(scores):
        return None
    low, high = mean_interval(scores)
    return max(low, 0.0) if min(scores) >= 0.0 else low, high


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """95 % interval of a share; (0, 1) without trials. Source: E. B. Wilson, JASA 22 (1927).

    Neither number need be whole, where trials are weighted.
    """
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, Z95 * Z95
    scale = 1 + z2 / trials
    middle = (share + z2 / (2 * trials)) / scale
    half = Z95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


def share_interval(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % interval of a share whose trials come in groups that are not independent; (0, 1) without trials.

    A row is (hits, trials) of a group. With four numbers, (hits, trials) of two kinds, it is of the mean of the two shares.
    Wilson's interval, with the trials that would give the jackknife's variance over groups. Where the share is 0 or 1, or
    the groups are too few, a group counts as one trial. Source: E. L. Korn and B. I. Graubard, Survey Methodology 24 (1998).
    """
    if not rows:
        return 0.0, 1.0
    sums = np.array(rows, dtype=np.float64).reshape(len(rows), -1, 2)
    total = sums.sum(axis=0)

    def mean(s: Sums) -> float:
        return _mean([_over(hits, trials) for hits, trials in s])

    value, groups = mean(total), len(rows)
    if math.isnan(value):
        return 0.0, 1.0
    trials = float(groups)
    if groups >= FEWEST and 0.0 < value < 1.0:
        variance = _variance(sums, mean) * (t_quantile(groups - 1) / Z95) ** 2
        if not math.isnan(variance):
            most = float(total[:, 1].sum())
            trials = min(most, value * (1.0 - value) / variance) if variance > 0.0 else most
    return wilson(value * trials, trials)
