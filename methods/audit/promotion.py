"""Whether a version of the judge is worse than the one before: a sign test over anchors, with a bounded error in the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new version next to the standing one on the same rollouts.

    Attributes:
        better, worse: rollouts on whose steps more, or fewer, of its votes are right.
        p: chance of so many worse ones, or more, if both judge equally well.
    """

    better: int
    worse: int
    p: float

    def refused(self, error: float, tests: int) -> bool:
        """Return whether the new version judges worse: at most `error` in all of so many tests together (Bonferroni)."""
        return self.p < error / tests


def compare(standing: Mapping[str, float], new: Mapping[str, float]) -> Comparison:
    """Compare the shares of right votes by rollout: the exact one-sided sign test; rollouts with equal shares say nothing."""
    shared = standing.keys() & new.keys()
    better = sum(new[name] > standing[name] for name in shared)
    worse = sum(new[name] < standing[name] for name in shared)
    n = better + worse
    p = sum(comb(n, k) for k in range(worse, n + 1)) / 2**n
    return Comparison(better, worse, p)
