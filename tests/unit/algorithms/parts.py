"""Asking estimators and losses by name."""

from __future__ import annotations

from typing import Any

from triforge.algorithms.advantages import Rows, ScoredRows
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.estimators import ESTIMATORS, Group
from triforge.algorithms.losses import LOSSES, TokenLoss, Tokens

# The trajectories of the published test vector: one success, two failures, three votes a step.
OUTCOMES = [1, -1, -1]
VOTES = [
    [[1, 1, 1], [1, 1, -1]],
    [[1, -1, -1], [-1, -1, -1], [1, 1, -1]],
    [[-1, -1, -1], [-1, -1, -1]],
]


def estimate(group: Group | Rows, algorithm: Algorithm, name: str = "") -> ScoredRows:
    """Advantages of a group, or of rewards alone, by the algorithm's estimator or the one of that name."""
    rows = group if isinstance(group, Group) else Group(rewards=group)
    if name and name != algorithm.estimator:
        algorithm = algorithm.changed(estimator=name)
    part = ESTIMATORS.find(algorithm.estimator)
    return part.function(rows, algorithm, algorithm.estimator_options)


def token_loss(name: str, tokens: Tokens, **options: Any) -> TokenLoss:
    """Return the loss of some tokens."""
    part = LOSSES.find(name)
    return part.function(tokens, part.options(**options))
