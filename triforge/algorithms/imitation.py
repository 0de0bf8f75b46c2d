"""Imitation in the place of a policy gradient: the jobs `ce`, `distil` and `dpo_pair`.

The advantage is the weight of a step in imitation (`ce`, `distil`), or the side of the pairs that its trajectory is on
(`dpo_pair`). Pairs are whole trajectories of one task, one better than the other:

    r = beta * sum over a step's tokens of (log p - log p_reference)        the implicit reward of the step
    loss = mean over pairs of -log sigmoid(sum of r over the better one - sum of r over the worse one)

Sources: rejection-sampling fine-tuning (RLoop, arXiv 2511.04285); distilling the better of several candidates (PA-RL,
arXiv 2412.06685); DPO (arXiv 2305.18290), over pairs of trajectories by outcome (iStar, arXiv 2509.19199).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from triforge.algorithms.advantages import (
    ZERO_ADVANTAGE,
    Rows,
    Scored,
    ScoredRows,
    over_steps,
    reason,
    row_means,
)
from triforge.errors import InputError

NOT_A_SUCCESS = "not a success"
NO_PAIR = "no pair"


def imitated(
    job: str, outcomes: Sequence[int | None], rewards: Rows, *, temperature: float = 1.0
) -> ScoredRows:
    """Return the weight of each step of one task's rollouts in imitation.

    `ce` imitates the successes, each with 1. `distil` imitates every measured trajectory with `n * softmax(reward /
    temperature)`, so that n equal ones have 1 each; its reward is the mean of its steps'. `dpo_pair` gives +1 to successes
    and -1 to failures, if there are both.
    """
    if job == "distil":
        means, why = row_means(rewards), ZERO_ADVANTAGE
        measured = [mean for mean in means if mean is not None]
        shares = iter(best_of(measured, temperature=temperature))
        each = [0.0 if mean is None else len(measured) * next(shares) for mean in means]
    elif job == "ce":
        each, why = [float(outcome == 1) for outcome in outcomes], NOT_A_SUCCESS
    else:
        both = {1, -1} <= set(outcomes)
        each, why = [float(outcome or 0) if both else 0.0 for outcome in outcomes], NO_PAIR
    return over_steps(rewards, Scored(tuple(each), tuple(reason(share, why) for share in each)))


@dataclass(frozen=True, slots=True)
class PairLoss:
    """The loss of all pairs, and its derivative by each unit's score.

    Attributes:
        loss: mean over groups with pairs of the mean over their pairs; 0 without any.
        slopes: d loss / d score of each unit; 0 of one that is in no pair.
        right: share of pairs in which the better unit has the higher score, ties counting half.
    """

    loss: float
    slopes: tuple[float, ...]
    pairs: int
    right: float


def pair_loss(
    scores: Sequence[float], better: Sequence[bool], groups: Sequence[Hashable]
) -> PairLoss:
    """Compare every better unit of a group with every worse one.

    The loss couples units; its slopes do not: `sum of slope * score` has, at these scores, the very gradient of the loss,
    and can be cut up in any way. For each unit: its score (for instance the sum of its implicit rewards), whether it is one
    that should score higher, and its group; only units of one group are compared.
    """
    if not len(scores) == len(better) == len(groups):
        raise InputError(
            f"pairs: given {len(scores)} scores, {len(better)} sides and {len(groups)} groups, expected equal numbers"
        )
    sides: dict[Hashable, tuple[list[int], list[int]]] = {}
    for i, group in enumerate(groups):
        sides.setdefault(group, ([], []))[0 if better[i] else 1].append(i)
    mixed = [pair for pair in sides.values() if pair[0] and pair[1]]
    slopes = [0.0] * len(scores)
    losses, right, count = [], 0.0, 0
    for good, bad in mixed:
        share = 1.0 / (len(good) * len(bad) * len(mixed))
        for i, j in ((i, j) for i in good for j in bad):
            margin = scores[i] - scores[j]
            losses.append(share * (max(-margin, 0.0) + math.log1p(math.exp(-abs(margin)))))
            slope = share / (1.0 + math.exp(min(margin, 700.0)))
            slopes[i] -= slope
            slopes[j] += slope
            right += 1.0 if margin > 0 else 0.5 * (margin == 0)
            count += 1
    return PairLoss(math.fsum(losses), tuple(slopes), count, right / count if count else 0.0)


def best_of(values: Sequence[float], *, temperature: float = 1.0) -> list[float]:
    """Return `softmax(values / temperature)`, the weight of each candidate in imitation (PA-RL, arXiv 2412.06685).

    A temperature of 0 imitates the best alone; ties share.
    """
    if not values:
        return []
    top = max(values)
    if temperature == 0.0:
        wins = [float(value == top) for value in values]
    else:
        wins = [math.exp((value - top) / temperature) for value in values]
    total = math.fsum(wins)
    return [win / total for win in wins]
