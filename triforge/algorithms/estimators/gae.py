"""`gae`: a critic's values are the baseline of every token (PPO, arXiv 1707.06347; GAE, arXiv 1506.02438).

A sequence is what one trajectory wrote, its tokens in order without what the environment wrote between them: values and
advantages are carried across those gaps as if they were not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import Field

from triforge.algorithms.advantages import UNMEASURED, ScoredRows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Estimated, Floats, Group, Series, estimator
from triforge.algorithms.registry import Options
from triforge.errors import InputError


class GaeOptions(Options):
    """Options of `gae`."""

    gamma: float = Field(1.0, ge=0, le=1)
    """Discount a token."""
    gae_lam: float = Field(1.0, ge=0, le=1)
    """How far beyond the next token a surprise reaches back."""
    value_clip: float | None = Field(None, gt=0, le=1_000_000.0)
    """How far a value of the critic may move in a step before the loss stops rewarding it."""

    def conflicts(self, algorithm: CoreOptions) -> Iterator[tuple[bool, str]]:
        """Rollouts are not compared, and the tokens of a response have advantages of their own."""
        given = f"estimator: given '{algorithm.estimator}' with"
        yield (
            algorithm.normalise != "raw",
            f"{given} normalise = '{algorithm.normalise}', allowed only 'raw': rollouts are not compared, the critic's values "
            "are the baseline",
        )
        yield (
            algorithm.opsm_delta is not None,
            f"{given} opsm_delta = {algorithm.opsm_delta}, allowed only none: the tokens of a response have advantages of "
            "their own, so none is negative as a whole",
        )


def gae_advantages(
    rewards: Series, values: Series, *, gamma: float = 1.0, lam: float = 1.0
) -> Estimated:
    """`delta_t = r_t + gamma * V_(t+1) - V_t`, `A_t = delta_t + gamma * lam * A_(t+1)`; beyond the end both are 0.

    `rewards` and `values` are those of each token [n].
    """
    r, v = arrays(rewards, values)
    advantages = np.zeros(len(r))
    following, carry = 0.0, 0.0
    for t in range(len(r) - 1, -1, -1):
        carry = r[t] + gamma * following - v[t] + gamma * lam * carry
        following = v[t]
        advantages[t] = carry
    return Estimated(advantages, advantages + v)


def returns_to_go(rewards: Series, *, gamma: float = 1.0) -> Floats:
    """`sum over s >= t of gamma^(s-t) * r_s` at each token [n]."""
    return gae_advantages(rewards, [0.0] * len(rewards), gamma=gamma).advantages


def arrays(rewards: Series, values: Series) -> tuple[Floats, Floats]:
    """Both as arrays [n]; InputError if their lengths differ."""
    r, v = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(r) != len(v):
        raise InputError(
            f"values: given {len(v)}, expected {len(r)}, one a token that has a reward"
        )
    return r, v


def _tokens(rewards: Series, values: Series, ends: Sequence[int], options: GaeOptions) -> Estimated:
    return gae_advantages(rewards, values, gamma=options.gamma, lam=options.gae_lam)


@estimator("gae", GaeOptions, tokens=_tokens, sums_steps=True, reads=("normalise",))
def gae(group: Group, algorithm: CoreOptions, options: GaeOptions) -> ScoredRows:
    """Left to the critic: 0 until then, and no reason against a measured step."""
    return ScoredRows(
        tuple((0.0,) * len(row) for row in group.rewards),
        tuple(tuple(UNMEASURED if r is None else None for r in row) for row in group.rewards),
    )
