"""`bilevel_gae`: GAE over turns, then over the tokens of each turn (RAGEN, arXiv 2504.20073).

The ends of turns are given and not guessed from rewards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from triforge.algorithms.advantages import ScoredRows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Estimated, Group, Series, estimator
from triforge.algorithms.estimators.gae import GaeOptions, arrays, gae, gae_advantages
from triforge.errors import InputError


class BilevelGaeOptions(GaeOptions):
    """Options of `bilevel_gae`, in addition to those of `gae`."""

    turn_gamma: float = Field(1.0, ge=0, le=1)
    """Discount a turn."""


def bilevel_gae_advantages(
    rewards: Series,
    values: Series,
    ends: Sequence[int],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    turn_gamma: float = 0.95,
) -> Estimated:
    """Advantages over two levels.

    Over turns, with `e_m` the last token of turn m: `delta_m = R_m + turn_gamma * V(e_(m+1)) - V(e_m)`, `A_m = delta_m +
    turn_gamma * lam * A_(m+1)`, `G_m = A_m + V(e_m)`. Over tokens, G_m is the only reward of turn m, at e_m, and nothing
    is carried from one turn into another.

    `rewards` and `values` are those of each token [n]; R_m sums up the rewards of a turn. `ends` are the last tokens of the
    turns, ascending; the last one is n - 1.
    """
    r, v = arrays(rewards, values)
    last = np.asarray(ends, dtype=np.int64)
    starts = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    if (len(last) and (np.diff(last) <= 0).any()) or (last[-1] if len(last) else -1) != len(r) - 1:
        raise InputError(
            f"ends: given {last.tolist()}, expected ascending places of which the last is {len(r) - 1}"
        )
    of_turns = np.add.reduceat(r, starts) if len(r) else r
    turns = gae_advantages(of_turns, v[last], gamma=turn_gamma, lam=lam)
    advantages = np.zeros(len(r))
    for m, (start, end) in enumerate(zip(starts, last, strict=True)):
        within = np.zeros(end - start + 1)
        within[-1] = turns.returns[m]
        found = gae_advantages(within, v[start : end + 1], gamma=gamma, lam=lam)
        advantages[start : end + 1] = found.advantages
    return Estimated(advantages, advantages + v)


def _tokens(
    rewards: Series, values: Series, ends: Sequence[int], options: BilevelGaeOptions
) -> Estimated:
    gamma, lam, turn_gamma = options.gamma, options.gae_lam, options.turn_gamma
    return bilevel_gae_advantages(
        rewards, values, ends, gamma=gamma, lam=lam, turn_gamma=turn_gamma
    )


@estimator("bilevel_gae", BilevelGaeOptions, tokens=_tokens, sums_steps=True, reads=("normalise",))
def bilevel_gae(group: Group, algorithm: CoreOptions, options: BilevelGaeOptions) -> ScoredRows:
    """Left to the critic."""
    return gae.function(group, algorithm, options)
