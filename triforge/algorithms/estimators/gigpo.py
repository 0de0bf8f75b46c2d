"""`gigpo`: whole trajectories against each other, and returns from the same state (GiGPO, arXiv 2505.10978)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from triforge.algorithms.advantages import (
    Rows,
    ScoredRows,
    added,
    compared,
    compared_within,
    over_steps,
)
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.registry import Options


class GigpoOptions(Options):
    """Options of `gigpo`."""

    gamma: float = Field(1.0, ge=0, le=1)
    """Discount a step of the returns."""
    state_weight: float = Field(1.0, gt=0, le=100)
    """Weight of the comparison within states relative to that of trajectories."""


@estimator("gigpo", GigpoOptions, sums_steps=True)
def gigpo(group: Group, algorithm: CoreOptions, options: GigpoOptions) -> ScoredRows:
    """Return `A = A_E + state_weight * A_S`.

    A_E compares the sums of the trajectories' rewards; A_S compares, over all steps of the task taken in one state, their
    discounted returns. A state that was met once adds nothing.
    """
    states = group.states("gigpo")
    present = [[r for r in row if r is not None] for row in group.rewards]
    episodes = compared([math.fsum(row) if row else None for row in present], algorithm)
    returns = [discounted_returns(row, options.gamma) for row in group.rewards]
    within = by_state(returns, states, algorithm)
    return added(group.rewards, over_steps(group.rewards, episodes), within, options.state_weight)


def discounted_returns(rewards: Sequence[float | None], gamma: float) -> list[float | None]:
    """`R_t = sum over k >= t of gamma^(k-t) * r_k` of one trajectory; None where nothing was measured, which adds 0."""
    found: list[float | None] = []
    carry = 0.0
    for reward in reversed(rewards):
        carry = (reward or 0.0) + gamma * carry
        found.append(None if reward is None else carry)
    return found[::-1]


def by_state(values: Rows, states: Sequence[Sequence[str]], algorithm: CoreOptions) -> ScoredRows:
    """Compare the measured values of steps whose state has the same name; one that was met once says nothing."""
    places: dict[str, list[tuple[int, int]]] = {}
    for t, row in enumerate(states):
        for i, state in enumerate(row):
            if values[t][i] is not None:
                places.setdefault(state, []).append((t, i))
    met_again = [cells for cells in places.values() if len(cells) > 1]
    return compared_within(values, met_again, algorithm)
