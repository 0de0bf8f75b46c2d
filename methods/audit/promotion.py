"""Whether a version of the judge is worse than the one before: a sign test over anchors, with a bounded error in the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from triforge.algorithms.paired import sign_test
from triforge.algorithms.vote_errors import VoteErrors

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


def compare(standing: Mapping[str, VoteErrors], new: Mapping[str, VoteErrors]) -> Comparison:
    """Compare the votes by rollout: the exact one-sided sign test; rollouts that change nothing count in neither.

    A wrong vote on a rollout counts one over the votes of its side in all rollouts, so a judge that always gives one answer wins nothing.
    """
    shared = standing.keys() & new.keys()
    whole = total(new[name] for name in shared)
    change = [
        (standing[name].missed - new[name].missed) / (whole.good or 1)
        + (standing[name].praised - new[name].praised) / (whole.bad or 1)
        for name in shared
    ]
    better, worse = sum(c > _EQUAL for c in change), sum(c < -_EQUAL for c in change)
    return Comparison(better, worse, sign_test(worse, better))


def total(found: Iterable[VoteErrors]) -> VoteErrors:
    """Return the sums of counts."""
    return VoteErrors(*map(sum, zip(VoteErrors(0, 0, 0, 0), *found, strict=True)))


def competence(found: Iterable[VoteErrors]) -> float:
    """Return how much more a judge knows than one that always gives one answer, 0 to 1; a side without steps counts as right."""
    one = total(found)
    wrong = one.missed / max(1, one.good) + one.praised / max(1, one.bad)
    return max(0.0, 1.0 - wrong)
