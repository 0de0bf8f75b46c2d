"""Preference pairs: whole trajectories of one task, one better than the other, and what a model makes of them.

    r = beta * sum over a step's tokens of (log p - log p_reference)        what the model thinks the step was worth
    loss = mean over pairs of -log sigmoid(sum of r over the better one - sum of r over the worse one)

Sources: DPO (arXiv 2305.18290); over the steps of trajectories and as step rewards, iStar (arXiv 2509.19199).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from triforge.errors import InputError


@dataclass(frozen=True, slots=True)
class PairLoss:
    """The loss of all pairs, and its derivative by each unit's score.

    Attributes:
        loss: mean over groups with pairs of the mean over their pairs; 0 without any.
        slopes: d loss / d score of each unit; 0 of one that is in no pair.
        pairs: how many there were.
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
    and can be cut up in any way.

    Args:
        scores: of each unit, for instance the sum of its implicit rewards.
        better: whether the unit is one that should score higher.
        groups: the group of each unit; only units of one group are compared.

    Raises:
        InputError: the lengths differ.
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
        for i in good:
            for j in bad:
                margin = scores[i] - scores[j]
                losses.append(share * softplus(-margin))
                slope = share / (1.0 + math.exp(min(margin, 700.0)))
                slopes[i] -= slope
                slopes[j] += slope
                right += 1.0 if margin > 0 else 0.5 * (margin == 0)
                count += 1
    return PairLoss(math.fsum(losses), tuple(slopes), count, right / count if count else 0.0)


def softplus(x: float) -> float:
    """`log(1 + exp(x))` without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def best_of(values: Sequence[float], *, temperature: float = 1.0) -> list[float]:
    """`softmax(values / temperature)`: how often each candidate is to be imitated. 0 imitates the best alone.

    Ties at temperature 0 share.

    Source: PA-RL (arXiv 2412.06685).

    Raises:
        InputError: the temperature is negative.
    """
    if temperature < 0:
        raise InputError(f"temperature: given {temperature}, expected at least 0")
    if not values:
        return []
    top = max(values)
    if temperature == 0.0:
        wins = [float(value == top) for value in values]
    else:
        wins = [math.exp((value - top) / temperature) for value in values]
    total = math.fsum(wins)
    return [win / total for win in wins]
