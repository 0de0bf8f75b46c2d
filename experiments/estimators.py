"""Credit rules that are tried in an experiment and are no part of the product; arms name them by their path."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from triforge.algorithms.advantages import ScoredRows, added, compared_within, frozen, row_means
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.estimators.group import group as whole
from triforge.algorithms.estimators.step_index import StepIndexOptions, step_index
from triforge.algorithms.registry import NoOptions


@estimator("returns", reads_votes=True)
def returns(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """`A = A_O + lam * A_V`: A_O as of `group`; A_V compares, at equal step index, what the votes add up to from the step on.

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


@estimator("within", reads_votes=True)
def within(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """`A_i = A_O + lam * (S_i - mean S)`: as `share`, but as much in a trajectory of an average outcome and in groups that all fail.

    A_O as of `group`; the mean is over the judged steps of the trajectory. An unjudged step adds 0.
    """
    outcomes = whole.function(Group(rewards=group.outcomes), algorithm, options)
    return added(group.votes, outcomes, _centred(group), algorithm.lam)


@estimator("within_index", StepIndexOptions, reads_votes=True)
def within_index(group: Group, algorithm: CoreOptions, options: StepIndexOptions) -> ScoredRows:
    """The same with A_O as of `step_index`."""
    outcomes = step_index.function(Group(rewards=group.outcomes), algorithm, options)
    return added(group.votes, outcomes, _centred(group), algorithm.lam)


def _centred(group: Group) -> ScoredRows:
    """Votes less the mean of their trajectory."""
    rows = [
        [0.0 if v is None or mean is None else v - mean for v in row]
        for row, mean in zip(group.votes, row_means(group.votes), strict=True)
    ]
    return ScoredRows(frozen(rows), frozen([[None] * len(row) for row in rows]))


def _ahead(votes: Sequence[float | None]) -> list[float]:
    return [*accumulate(v or 0.0 for v in reversed(votes))][::-1]
