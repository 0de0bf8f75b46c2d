"""Whether a version of the judge is worse than the one before: a sign test over anchors, with a bounded error in the whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

Hits = Sequence[int]
"""Of the votes on a rollout: those on steps labelled -1 that are right, all of them, then the same of steps labelled +1."""

_EQUAL: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new version next to the standing one on the same rollouts.

    Attributes:
        better, worse: rollouts that raise, or lower, the balanced share of right votes over all of them.
        p: chance of so many worse ones, or more, if both judge equally well.
    """

    better: int
    worse: int
    p: float

    def refused(self, error: float, tests: int) -> bool:
        """Return whether the new version judges worse: at most `error` in all of so many tests together (Bonferroni)."""
        return self.p < error / tests


def compare(standing: Mapping[str, Hits], new: Mapping[str, Hits]) -> Comparison:
    """Compare the right votes by rollout: the exact one-sided sign test; rollouts that change nothing count in neither.

    A right vote on a rollout counts one over the votes of its side in all rollouts, so a judge that always gives one answer wins nothing.
    """
    shared = standing.keys() & new.keys()
    minus, plus = (sum(new[name][place] for name in shared) or 1 for place in (1, 3))
    change = [
        (new[name][0] - standing[name][0]) / minus + (new[name][2] - standing[name][2]) / plus
        for name in shared
    ]
    better, worse = sum(c > _EQUAL for c in change), sum(c < -_EQUAL for c in change)
    n = better + worse
    p = sum(comb(n, k) for k in range(worse, n + 1)) / 2**n
    return Comparison(better, worse, p)


def balanced(hits: Mapping[str, Hits]) -> float:
    """Return the mean of the shares of right votes on the two sides; a side without a step is left out."""
    sums = [sum(column) for column in zip(*hits.values(), strict=True)]
    shares = [sums[place] / sums[place + 1] for place in (0, 2) if sums[place + 1]]
    return sum(shares) / len(shares) if shares else 0.0
