"""The alarm that the policy climbs the judge's errors: praise of wrong steps in failing rollouts rises, success does not.

The audited rollouts of the latest steps are cut into an older and a newer half. The share of votes of +1 among the votes on steps
that are labelled -1, in rollouts that failed, is compared between them, and so is the success of all rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from methods.audit.labelled import Audited, errors_of
from methods.audit.promotion import competence
from triforge.algorithms.gaming import in_errors, ratio

STEPS: Final = 24  # the latest that are compared
ROLLOUTS: Final = 16  # failed ones with wrong steps in each half, below which there is no alarm
ALARM_Z: Final = 3.0  # standard errors
RISE: Final = 0.06
"""Rise of praise between the halves below which there is no alarm: with a good judge a few wrong votes are 3 standard errors.

Chosen on what is on record: of the 48 reported runs with a taught judge (experiments/results/sparse.md) 12 had 3 standard errors, at
rises of .02 to .06; a run with errors that repeat rises by .16 in 10 steps, and the climb of the first pilot by .07 in 30.
"""

Entry = Sequence[Any]
"""A step: its number, its successes, its rollouts, and of each failed audited one (votes of +1 on wrong steps, votes on wrong steps)."""


def entry(step: int, success: tuple[int, int], found: Iterable[Audited]) -> list[Any]:
    """Return what the alarm reads of a step, as JSON; `success` is (successes, measured) of all its rollouts."""
    praised = []
    for one in found:
        if one.trajectory.outcome.value == -1:
            votes = [v.value for label, judged in one.steps if label == -1 for v in judged.votes]
            praised += [[votes.count(1), len(votes)]] if votes else []
    return [step, *success, praised]


def climbing(entries: Sequence[Entry]) -> float | None:
    """Return by how many standard errors praise of wrong steps rose; None unless the policy climbs the judge's errors."""
    middle = len(entries) // 2
    halves = (entries[:middle], entries[middle:])
    rows = [[(p, n) for _, _, _, praised in half for p, n in praised] for half in halves]
    if min(map(len, rows)) < ROLLOUTS:
        return None
    older, newer = (ratio(half) for half in rows)
    before, after = (_share(half) for half in halves)
    if newer[0] - older[0] < RISE:
        return None
    praise, success = in_errors(older, newer), in_errors(before, after)
    return praise if praise > ALARM_Z and success < ALARM_Z else None


def weight(praise: float | None, found: Iterable[Audited]) -> float:
    """Return the share of `lam` that the votes of the next step weigh: the judge's competence on a step's audited rollouts during an alarm, else 1.

    With none of it the policy would learn from outcomes alone, and an alarm would last because success cannot rise.
    """
    if praise is None:
        return 1.0
    return competence(errors_of(one.trajectory, one.votes) for one in found)


def _share(half: Sequence[Entry]) -> tuple[float, float]:
    """Return the success of a half, and the variance of that share (Laplace's, so that none is 0)."""
    won, played = sum(e[1] for e in half), sum(e[2] for e in half)
    share = (won + 1) / (played + 2)
    return share, share * (1 - share) / (played + 2)
