"""`group`: compare whole trajectories of one task (GRPO, arXiv 2402.03300)."""

from __future__ import annotations

from triforge.algorithms.advantages import ScoredRows, compared, over_steps, row_means
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.registry import NoOptions


@estimator("group", whole=True, splits=True)
def group(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """Compare trajectories by the mean reward of their measured steps; each step gets its trajectory's advantage."""
    return over_steps(group.rewards, compared(row_means(group.rewards), algorithm))
