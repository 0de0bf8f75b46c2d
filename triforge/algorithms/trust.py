"""Votes weighed by trust in them: outcome and votes are standardised apart, and the votes added (`vote_weight = "trust"`)."""

from __future__ import annotations

from triforge.algorithms.advantages import ScoredRows, added
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group


def trusted_advantages(group: Group, *, weight: float, algorithm: Algorithm) -> ScoredRows:
    """Standardise outcomes and mean votes apart and add them: `A = A_O + weight * A_V`.

    Unlike a weight inside the reward, this one also acts where all outcomes are equal: there the advantage is
    `weight * A_V` and not a full-size one. With the weight 0 the result is that of the outcome alone.
    """
    estimate, options = algorithm.estimator_part.function, algorithm.estimator_options
    first = estimate(Group(rewards=group.outcomes), algorithm, options)
    if weight == 0.0:
        return first
    second = estimate(Group(rewards=group.votes), algorithm, options)
    return added(group.rewards, first, second, weight)


def vote_weight(trust: float, algorithm: CoreOptions) -> float:
    """Weight of standardised votes: `lam * trust`, at most so much that their share is `vote_share`."""
    return min(algorithm.lam * trust, algorithm.vote_share / (1.0 - algorithm.vote_share))
