"""Whether success on held-out tasks changed between two evaluations of the same tasks, with a 95 % interval.

Each task is played with the same seed before and after, so the two results of a task are a pair: what is common to both, such as a task
that is always solved, is no noise of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from triforge.algorithms.theory import FEWEST, mean_interval, wilson

Word = Literal["better", "worse", "undecided", "not measured"]

HELD_OUT: Final = ("eval/sampled", "eval/sampled_score")
"""The measures that a verdict compares, the first of a run that has a change at `_gain`."""

READ: Final = tuple(
    f"{name}_gain{part}" for name in HELD_OUT for part in ("", "/low", "/high", "_pairs")
)


@dataclass(frozen=True, slots=True)
class Change:
    """The mean difference of pairs, with its 95 % interval; `measure` is the compared measure."""

    gain: float
    low: float
    high: float
    pairs: int
    measure: str = ""

    @property
    def word(self) -> Word:
        """The decision: the interval lies above 0, below 0, or holds it."""
        return "better" if self.low > 0.0 else "worse" if self.high < 0.0 else "undecided"

    @property
    def shown(self) -> str:
        """The difference with its interval: of success in points, else as a score."""
        success = bool(self.measure) and not self.measure.endswith("_score")
        gain, low, high = (
            f"{100 * value:+.1f}" if success else f"{value:+.3g}"
            for value in (self.gain, self.low, self.high)
        )
        return f"{gain}{' points' if success else ''}, 95 % interval {low} to {high}"

    @property
    def pairs_to_tell(self) -> int | None:
        """About how many pairs would tell a difference of this size from 0; None without a difference."""
        half = (self.high - self.low) / 2
        return math.ceil(self.pairs * (half / self.gain) ** 2) if self.gain else None


def change_of(measures: Mapping[str, float]) -> Change | None:
    """Return the change since the first evaluation that a step has measured."""
    for name in HELD_OUT:
        if f"{name}_gain" in measures:
            gain, low, high, pairs = (measures[f"{name}_gain{part}"] for part in ("", "/low", "/high", "_pairs"))  # fmt: skip
            return Change(gain, low, high, int(pairs), name)
    return None


def paired_shares(pairs: Sequence[tuple[bool, bool]]) -> Change:
    """Return the change of a share; a pair is whether the first and the second trial of it succeeded, one pair at least.

    Source: R. G. Newcombe, Statistics in Medicine 17 (1998), 2635-2650, method 10: Wilson's intervals of the two shares, squared and
    added, with the correlation of the pairs. The interval is never outside of [-1, 1], and no point where nothing differs.
    """
    n = len(pairs)
    both, lost, won, none = (
        sum(pair == kind for pair in pairs)
        for kind in ((True, True), (True, False), (False, True), (False, False))
    )
    before, after = (both + lost) / n, (both + won) / n
    least_before, most_before = wilson(both + lost, n)
    least_after, most_after = wilson(both + won, n)
    spread = math.sqrt((both + lost) * (won + none) * (both + won) * (lost + none))
    agree = both * none - lost * won
    # a positive correlation is lessened by a correction for continuity
    phi = (max(agree - n / 2, 0.0) if agree > 0 else agree) / spread if spread else 0.0

    def half(one: float, other: float) -> float:
        return math.sqrt(one * one - 2 * phi * one * other + other * other)

    gain = after - before
    low = gain - half(after - least_after, most_before - before)
    high = gain + half(most_after - after, before - least_before)
    return Change(gain, low, high, n)


def half_width(pairs: int) -> float:
    """Return the smallest change of a share of one half that so many pairs tell from 0, where they have nothing in common."""
    kinds = ((True, True), (True, False), (False, True), (False, False))
    change = paired_shares([kinds[n % 4] for n in range(pairs)])
    return (change.high - change.low) / 2


def paired_means(pairs: Sequence[tuple[float, float]]) -> Change | None:
    """Return the change of a mean, by Student's t of the differences; None for fewer than `FEWEST` pairs."""
    if len(pairs) < FEWEST:
        return None
    differences = [after - before for before, after in pairs]
    return Change(
        math.fsum(differences) / len(pairs), *mean_interval(differences), pairs=len(pairs)
    )


def change_of_pairs(pairs: Sequence[tuple[float, float]]) -> Change | None:
    """Return the change of successes, each 1 or 0, or of other values; None for too few pairs."""
    if pairs and all(value in (0.0, 1.0) for pair in pairs for value in pair):
        return paired_shares([(before == 1.0, after == 1.0) for before, after in pairs])
    return paired_means(pairs)
