"""`share`: the votes only share out the outcome's advantage among the steps of its trajectory (ours).

Where votes are added to the outcome they can be earned by themselves, in failures too: a loop of taking the wrong thing (-1) and
putting it back (+1) beats wandering at -1 a step. Here there is nothing to be had but the outcome.
"""

from __future__ import annotations

from triforge.algorithms.advantages import ScoredRows, frozen, reason, row_means
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.estimators.group import group as whole
from triforge.algorithms.registry import NoOptions


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
