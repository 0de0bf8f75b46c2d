"""`within`: the votes move credit between the steps of a trajectory and never to or from it (ours).

Where votes are added to the outcome they can be earned by themselves, in failures too: a loop of taking the wrong thing (-1) and
putting it back (+1) beats wandering at -1 a step. Here a trajectory as a whole is worth what its outcome says.
"""

from __future__ import annotations

from triforge.algorithms.advantages import ScoredRows, added, frozen, row_means
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.estimators.group import group as whole
from triforge.algorithms.registry import NoOptions


@estimator("within", reads_votes=True)
def within(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """`A_i = A + lam * (S_i - mean S)`, A that of `group` for the outcomes alone, S_i the mean vote of step i.

    The mean is over the judged steps of the trajectory, an unparsable vote counting 0; so their A_i add up to A times their
    number whatever the votes say. Steps also differ where all rollouts end alike. With `vote_weight = "trust"` lam is the votes' weight.
    """
    outcomes = whole.function(Group(rewards=group.outcomes), algorithm, options)
    return added(group.votes, outcomes, centred(group), algorithm.lam)


def centred(group: Group) -> ScoredRows:
    """Votes less the mean of their trajectory; 0 on a step without."""
    rows = [
        [0.0 if v is None or mean is None else v - mean for v in row]
        for row, mean in zip(group.votes, row_means(group.votes), strict=True)
    ]
    return ScoredRows(frozen(rows), frozen([[None] * len(row) for row in rows]))
