"""The acceptance test: decide whether a rewritten task replaces its parent.

The published rule compares two accuracies that were measured once, each with a handful of rollouts; it accepts a task
that did not change at all with a chance of 13 to 50 %. `decide` is a test instead. It measures parent and candidate
in pairs of fresh groups; both groups of a pair are played by the same policy version, the version may change from pair
to pair. If the rewrite changed nothing, then, given how many rollouts of a pair succeeded, the share that falls to the
candidate is hypergeometric, whatever the true success rates were. Convolving over the pairs gives the exact
distribution of the candidate's successes without any assumption about the rates.

The test looks at the data when the shares `LOOKS` of `max_rollouts` were played in each arm. The chance of a false
acceptance at or before a look is at most `alpha * share ** SPENDING`, computed exactly along the paths that earlier
looks left open, so it is at most `alpha` in all. What an early look does not use, later looks may. A rewrite whose
measured change is not above `FUTILITY` at an early look is given up.

The measured accuracy of the candidate must also lie inside the band, by the plain comparison of the published rule, and
must be neither 0 nor 1. A candidate that is outside at an early look may come back inside at a later one.

The group whose accuracy asked for the rewrite must not be among the pairs: it was selected for being extreme.

Sources: arXiv 2602.02488, section 2 and Algorithm 2 (the published rule); the rest is ours: a stratified exact
conditional test (Fisher; Mantel and Haenszel) with error spending (Lan and DeMets, 1983; power family of Kim and DeMets,
1987). The numbers below were chosen for power at 8 rollouts a group; `bench/acceptance.py` computes it. The first look
comes at one half: earlier, a candidate that nearly every rollout solves is too often measured inside the band by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from triforge.algorithms.filters import check_counts
from triforge.errors import InputError

Direction = Literal["harder", "easier"]
Verdict = Literal["accept", "reject", "continue"]
Count = tuple[int, int]

LOOKS = (1 / 2, 5 / 8, 1.0)
SPENDING = 4.0
FUTILITY = (-0.04, 0.03)


def paper_accepts(
    direction: Direction, parent_accuracy: float, candidate_accuracy: float, low: float, high: float
) -> bool:
    """Apply the published rule: harder is `low <= candidate < parent`, easier `parent < candidate <= high` (and so above 0)."""
    if direction == "harder":
        return low <= candidate_accuracy < parent_accuracy
    return parent_accuracy < candidate_accuracy <= high


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision after the pairs measured so far; pairs after a verdict are ignored.

    Attributes:
        verdict: accept, reject, or continue with another pair of groups.
        p_value: one-sided exact p-value of all pairs used, against "the rewrite changed nothing"; 1.0 without pairs.
        parent, candidate: (successes, measured) over the pairs used.
        looks: after how many pairs the test looked at the data.
    """

    verdict: Verdict
    p_value: float
    reason: str
    parent: Count
    candidate: Count
    pairs: int
    looks: tuple[int, ...] = ()


def decide(
    direction: Direction,
    parent_counts: Sequence[Count],
    candidate_counts: Sequence[Count],
    *,
    low: float,
    high: float,
    alpha: float = 0.05,
    max_rollouts: int = 64,
) -> Decision:
    """Accept, reject or continue, given all pairs measured so far, oldest first.

    The same pairs always give the same decision, and a verdict stays what it is when further pairs are appended.

    Args:
        parent_counts: (successes, measured) of the parent in each pair.
        candidate_counts: the same of the candidate, played by the same policy version.
        low: lowest measured accuracy of a harder candidate.
        high: highest measured accuracy of an easier one. Accuracies 0 and 1 are outside of every band.
        alpha: highest chance of accepting a candidate that does not differ from its parent.
        max_rollouts: measured rollouts in an arm at which the last look is taken.
    """
    if len(parent_counts) != len(candidate_counts):
        raise InputError(
            f"counts: given {len(parent_counts)} parent and {len(candidate_counts)} candidate groups, "
            "expected the same number: they are measured in pairs"
        )
    test = SequentialTest(direction, low=low, high=high, alpha=alpha, max_rollouts=max_rollouts)
    for parent, candidate in zip(parent_counts, candidate_counts, strict=True):
        if test.decision.verdict == "continue":
            test.add(parent, candidate)
    return test.decision


class SequentialTest:
    """The test of `decide`, one pair at a time. After a verdict other than "continue" no pair may be added."""

    def __init__(
        self, direction: Direction, *, low: float, high: float, alpha: float, max_rollouts: int
    ) -> None:
        self._harder, self._word = direction == "harder", direction
        self._low, self._high = low, high
        self._alpha, self._max = alpha, max_rollouts
        self._parent: Count = (0, 0)
        self._candidate: Count = (0, 0)
        self._pairs = self._due = 0
        self._looks: tuple[int, ...] = ()
        self._spent = 0.0
        # Chance, if nothing changed, of each number of candidate successes: of all paths, and of those still open.
        self._null: list[float] = [1.0]
        self._open: list[float] = [1.0]
        self.decision = self._decided("continue", "no pair measured yet")

    def add(self, parent: Count, candidate: Count) -> Decision:
        """Take one pair of (successes, measured) and decide; an InputError if a count is impossible or the test is over."""
        if self.decision.verdict != "continue":
            raise InputError(f"pair: given one more after the verdict {self.decision.verdict!r}")
        check_counts(*parent)
        check_counts(*candidate)
        self._pairs += 1
        self._parent = (self._parent[0] + parent[0], self._parent[1] + parent[1])
        self._candidate = (self._candidate[0] + candidate[0], self._candidate[1] + candidate[1])
        share = _candidate_share(parent[0] + candidate[0], parent[1], candidate[1])
        self._null = _convolve(self._null, share)
        self._open = _convolve(self._open, share)
        self.decision = self._decided(*self._judge())
        return self.decision

    def _judge(self) -> tuple[Verdict, str]:
        played = min(self._parent[1], self._candidate[1])
        last = max(self._parent[1], self._candidate[1]) >= self._max
        due = sum(played >= share * self._max for share in LOOKS)
        if not last and due <= self._due:
            return "continue", "more rollouts are needed before the next look"
        self._due, self._looks = due, (*self._looks, self._pairs)
        accepted = self._acceptance_set(
            self._alpha * (1.0 if last else (played / self._max) ** SPENDING)
        )
        hits = self._candidate[0]
        if hits in accepted:
            return "accept", f"{self._word} beyond chance and inside the band"
        for value in accepted:
            self._spent += self._open[value]
            self._open[value] = 0.0
        if last:
            if self._in_band(*self._candidate):
                return "reject", f"not shown to be {self._word} with all rollouts played"
            return "reject", "outside the band with all rollouts played"
        if self._is_futile(hits):
            return "reject", f"no sign of being {self._word}"
        if self._band_is_lost():
            return "reject", "the band can no longer be reached"
        for value in range(len(self._open)):  # such paths can no longer become a false acceptance
            if self._is_futile(value):
                self._open[value] = 0.0
        return "continue", "neither shown nor ruled out yet"

    def _acceptance_set(self, budget: float) -> set[int]:
        """Numbers of candidate successes that are accepted at this look.

        The most extreme values are taken as long as the open paths that end in them weigh no more than what is left of
        the budget and the plain p-value is at most alpha; of those the ones inside the band are accepted.
        """
        size = range(len(self._open))
        order = list(size if self._harder else reversed(size))
        left = budget - self._spent
        still_open = accumulate(self._open[value] for value in order)
        p_values = accumulate(self._null[value] for value in order)
        return {
            value
            for value, mass, p in zip(order, still_open, p_values, strict=True)
            if mass <= left and p <= self._alpha and self._in_band(value, self._candidate[1])
        }

    def _is_futile(self, hits: int) -> bool:
        """Whether `hits` successes of the candidate, all others being the parent's, are too little of a change."""
        parent, candidate = self._parent[1], self._candidate[1]
        others = self._parent[0] + self._candidate[0] - hits
        change = hits / candidate - others / parent
        return (-change if self._harder else change) <= FUTILITY[self._due - 1]

    def _in_band(self, hits: int, measured: int) -> bool:
        if not 0 < hits < measured:  # no rollout or each of them: such a task teaches nothing
            return False
        accuracy = hits / measured
        return accuracy >= self._low if self._harder else accuracy <= self._high

    def _band_is_lost(self) -> bool:
        """Whether even the most welcome rest of the rollouts would leave the candidate outside."""
        hits, measured = self._candidate
        left = max(0, self._max - measured)
        best = min(hits + left, measured + left - 1) if self._harder else max(hits, 1)
        return not self._in_band(best, measured + left)

    def _decided(self, verdict: Verdict, reason: str) -> Decision:
        hits = self._candidate[0]
        tail = math.fsum(self._null[: hits + 1] if self._harder else self._null[hits:])
        counts = (self._parent, self._candidate, self._pairs)
        return Decision(verdict, min(1.0, tail), reason, *counts, looks=self._looks)


@lru_cache(maxsize=4096)
def _candidate_share(successes: int, parent: int, candidate: int) -> tuple[float, ...]:
    """Hypergeometric chances of 0..candidate successes on the candidate's side of a pair with `successes` in all."""
    ways = math.comb(parent + candidate, successes)
    return tuple(
        math.comb(candidate, k) * math.comb(parent, successes - k) / ways if k <= successes else 0.0
        for k in range(candidate + 1)
    )


def _convolve(masses: Sequence[float], share: Sequence[float]) -> list[float]:
    result = [0.0] * (len(masses) + len(share) - 1)
    for i, mass in enumerate(masses):
        if mass:
            for k, chance in enumerate(share):
                result[i + k] += mass * chance
    return result
