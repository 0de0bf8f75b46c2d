"""`group`: compare whole trajectories of one task (GRPO, arXiv 2402.03300)."""

from __future__ import annotations

from triforge.algorithms.advantages import ScoredRows, compared, over_steps, row_means
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.registry import NoOptions


@estimator("group", whole=True, splits=True)
def group(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """A trajectory's reward is the mean of its measured steps; its advantage stands on all of them."""
    return over_steps(group.rewards, compared(row_means(group.rewards), algorithm))
