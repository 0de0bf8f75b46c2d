"""`branch`: compare the candidates that were drawn for one turn in one state (AT-GRPO, arXiv 2510.11062)."""

from __future__ import annotations

from triforge.algorithms.advantages import ScoredRows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.estimators.gigpo import by_state
from triforge.algorithms.registry import NoOptions


@estimator("branch", siblings=True)
def branch(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """Candidates of one environment, agent and turn against each other; one without a sibling is worth nothing."""
    return by_state(group.rewards, group.states("branch"), algorithm)
