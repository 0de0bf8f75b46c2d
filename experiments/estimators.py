"""Credit rules that are tried in an experiment and are no part of the product; arms name them by their path."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from triforge.algorithms.advantages import (
    ScoredRows,
    added,
    compared_within,
    frozen,
    reason,
    row_means,
)
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.estimators.group import group as whole
from triforge.algorithms.estimators.step_index import StepIndexOptions, step_index
from triforge.algorithms.estimators.within import centred
from triforge.algorithms.registry import NoOptions


@estimator("returns", reads_votes=True)
def returns(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """Return `A = A_O + lam * A_V`: A_O as of `group`; A_V compares, at equal step index, what the votes add up to from the step on.

    Of votes that are differences of a potential nothing is left in a loop, wherever it stands. An unjudged step adds 0.
    """
    ahead = [
        [total if v is not None else None for v, total in zip(row, _ahead(row), strict=True)]
        for row in group.votes
    ]
    columns = [
        [(t, i) for t, row in enumerate(ahead) if i < len(row)]
        for i in range(max(map(len, ahead), default=0))
    ]
    outcomes = whole.function(Group(rewards=group.outcomes), algorithm, options)
    return added(group.votes, outcomes, compared_within(ahead, columns, algorithm), algorithm.lam)


@estimator("share", reads_votes=True)
def share(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """`A_i = A * (1 + lam * sign(A) * (S_i - mean S))`, A that of `group` for the outcomes alone, S_i the mean vote of step i.

    The mean is over the judged steps of the trajectory, an unparsable vote counting 0; so their A_i add up to A times their
    number whatever the votes say, and where all outcomes are equal they are 0. With lam above 0.5 a step whose vote is far from the
    mean may be worth the opposite of its outcome.
    """
    episodes = whole.function(Group(rewards=group.outcomes), algorithm, options)
    advantages, reasons = [], []
    parts = zip(
        group.votes, row_means(group.votes), episodes.advantages, episodes.reasons, strict=True
    )
    for votes, mean, row, whys in parts:
        cells = [
            0.0 if v is None or mean is None else a + algorithm.lam * abs(a) * (v - mean)
            for v, a in zip(votes, row, strict=True)
        ]
        advantages.append(cells)
        reasons.append([why or reason(a) for a, why in zip(cells, whys, strict=True)])
    return ScoredRows(frozen(advantages), frozen(reasons))


@estimator("within_index", StepIndexOptions, reads_votes=True)
def within_index(group: Group, algorithm: CoreOptions, options: StepIndexOptions) -> ScoredRows:
    """`within` with A_O as of `step_index`."""
    outcomes = step_index.function(Group(rewards=group.outcomes), algorithm, options)
    return added(group.votes, outcomes, centred(group), algorithm.lam)


def _ahead(votes: Sequence[float | None]) -> list[float]:
    return [*accumulate(v or 0.0 for v in reversed(votes))][::-1]
