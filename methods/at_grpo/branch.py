"""The estimator `branch`: candidates that were drawn for one turn in one state, compared with each other."""

from __future__ import annotations

from triforge.algorithms.advantages import ScoredRows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.estimators.gigpo import by_state
from triforge.algorithms.registry import NoOptions


@estimator("branch", siblings=True)
def branch(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """Compare candidates of one environment, agent and turn; a candidate without a sibling has no advantage."""
    return by_state(group.rewards, group.states("branch"), algorithm)
