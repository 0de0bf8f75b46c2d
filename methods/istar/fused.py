"""The estimator `fused`: outcomes compared with each other, and step scores standardised over all steps of the task."""

from __future__ import annotations

from triforge.algorithms.advantages import ScoredRows, added, compared, compared_within, over_steps
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.registry import NoOptions


@estimator("fused", reads=("normalise", "std_floor", "std_eps", "std_ddof"), reads_votes=True)
def fused(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """Return `A = A_E + lam * A_S`; A_S is always divided by the deviation."""
    outcomes = [next((o for o in row if o is not None), None) for row in group.outcomes]
    everywhere = [(t, i) for t, row in enumerate(group.votes) for i in range(len(row))]
    by_deviation = algorithm.model_copy(update={"normalise": "std"})
    within = compared_within(group.votes, [everywhere], by_deviation)
    episodes = over_steps(group.votes, compared(outcomes, algorithm))
    return added(group.votes, episodes, within, algorithm.lam)
