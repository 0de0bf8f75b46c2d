"""Whether the judge is being gamed: its votes rise while they tell less of the outcome.

The latest groups are cut into an older and a newer half, and two numbers are compared between them: the agreement
`mu_within` (theory), which neither the success rate nor the difficulty of tasks moves by itself, and the mean vote, the part
of the policy's reward that the judge gives. Each change is divided by its standard error, a jackknife over groups. The alarm
is on where the agreement fell and the mean vote rose, both by more than `ALARM_Z` standard errors. Votes that rise with
success and still tell it from failure raise no alarm, nor does a judge that only gets worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from triforge.algorithms.theory import GroupVotes

ALARM_Z: Final = 2.5  # standard errors
MIXED: Final = 16  # groups with both outcomes in each half, below which there is no alarm


@dataclass(frozen=True, slots=True)
class Drift:
    """Change of agreement and of the mean vote from the older half to the newer one, in standard errors."""

    agreement: float
    votes: float

    @property
    def alarm(self) -> bool:
        """Whether the judge is being gamed."""
        return self.agreement < -ALARM_Z and self.votes > ALARM_Z


def halves(groups: Sequence[GroupVotes]) -> tuple[Sequence[GroupVotes], Sequence[GroupVotes]]:
    """Split groups into the older and the newer half, oldest first."""
    middle = len(groups) // 2
    return groups[:middle], groups[middle:]


def drift(groups: Sequence[GroupVotes]) -> Drift | None:
    """How the judge changed over judged groups, oldest first; None while too few of them have both outcomes."""
    parts = halves(groups)
    if any(sum(g.within[1] > 0 for g in half) < MIXED for half in parts):
        return None
    older, newer = (ratio(g.within for g in half) for half in parts)
    before, after = (ratio(g.praise for g in half) for half in parts)
    return Drift(agreement=in_errors(older, newer), votes=in_errors(before, after))


def ratio(rows: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum over the sum of (numerator, denominator) rows, and its variance by leaving out one row at a time."""
    table = np.array([row for row in rows if row[1] > 0], dtype=np.float64)
    total, n = table.sum(axis=0), len(table)
    without = (total[0] - table[:, 0]) / (total[1] - table[:, 1])
    spread = float(((without - without.mean()) ** 2).sum())
    return float(total[0] / total[1]), (n - 1) / n * spread


def in_errors(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return the change of a (value, variance) in standard errors."""
    change, error = after[0] - before[0], math.sqrt(before[1] + after[1])
    if error == 0.0:
        return math.copysign(math.inf, change) if change else 0.0
    return change / error
