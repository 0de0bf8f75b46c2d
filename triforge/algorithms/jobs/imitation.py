"""Jobs that imitate rollouts in the place of estimating advantages: `ce`, `distil` and `dpo_pair`.

Each step has a weight instead of an advantage: how much it is imitated (`ce`, `distil`), or the side of the pairs that its
trajectory is on (`dpo_pair`). A pair is two whole trajectories of one task, one better than the other:

    r = beta * sum over a step's tokens of (log p - log p_reference)        the model's estimate of the step's worth
    loss = mean over pairs of -log sigmoid(sum of r over the better one - sum of r over the worse one)

Sources: rejection-sampling fine-tuning (RLoop, arXiv 2511.04285); distilling the better of several candidates (PA-RL,
arXiv 2412.06685); DPO (arXiv 2305.18290), over pairs of trajectories by outcome (iStar, arXiv 2509.19199).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from triforge.algorithms.advantages import (
    ZERO_ADVANTAGE,
    Rows,
    Scored,
    ScoredRows,
    over_steps,
    reason,
    row_means,
)
from triforge.algorithms.jobs import JOBS, Job
from triforge.algorithms.registry import Options
from triforge.errors import InputError

Outcomes = Sequence[int | None]
NOT_A_SUCCESS = "not a success"
NO_PAIR = "no pair"


# core options that do not fit imitation: whole trajectories are imitated, and no advantage is estimated
_FIXES: Final[dict[str, Any]] = {
    "estimator": "group",
    "vote_weight": "constant",
    "kl_placement": "loss",
    "whiten": False,
    "off_policy": "none",
}


class ImitationOptions(Options):
    """Options of every job that imitates: none of its own."""

    def conflicts(self, algorithm: Any) -> Iterator[tuple[bool, str]]:
        """Refuse options that read advantages, and corrections of what is imitated."""
        a = algorithm
        yield (
            a.estimator != "group" or a.whiten or a.vote_weight == "trust",
            f"job: given '{a.job}' with estimator = '{a.estimator}', whiten = {a.whiten} and vote_weight = "
            f"'{a.vote_weight}', allowed only with 'group', false and 'constant': whole trajectories are imitated or "
            "paired, and no advantage is estimated",
        )
        yield (
            a.off_policy not in ("auto", "none", "bypass"),
            f"off_policy: given '{a.off_policy}' with job = '{a.job}', allowed 'auto', 'none' or 'bypass': imitation needs no "
            "correction, whichever model wrote the tokens",
        )


class DistillationOptions(ImitationOptions):
    """Options of `distil`."""

    imitation_temperature: float = Field(1.0, ge=0, le=1_000_000.0)
    """How much better a rollout must be to be imitated more; 0 imitates the best."""


class PairOptions(ImitationOptions):
    """Options of `dpo_pair`."""

    dpo_beta: float = Field(0.1, gt=0, le=100)
    """Weight of a nat between the weights being trained and the KL anchor."""

    def conflicts(self, algorithm: Any) -> Iterator[tuple[bool, str]]:
        """Refuse terms of the loss that pairs have already, and another sum over tokens."""
        yield from super().conflicts(algorithm)
        yield (
            algorithm.kl_beta > 0.0 or algorithm.entropy_bonus > 0.0,
            f"kl_beta and entropy_bonus: given {algorithm.kl_beta} and {algorithm.entropy_bonus} with job = "
            f"'{algorithm.job}', allowed 0: its loss contains the distance to the anchor already (dpo_beta)",
        )
        yield (
            algorithm.aggregation != "token_mean",
            f"aggregation: given '{algorithm.aggregation}' with job = '{algorithm.job}', allowed 'token_mean': pairs are "
            "averaged, and a trajectory's tokens are summed up",
        )


def successes(outcomes: Outcomes, rewards: Rows, options: ImitationOptions) -> ScoredRows:  # noqa: ARG001
    """Imitate the successes, each with 1."""
    return _scored(rewards, [float(outcome == 1) for outcome in outcomes], NOT_A_SUCCESS)


def better_ones(outcomes: Outcomes, rewards: Rows, options: DistillationOptions) -> ScoredRows:  # noqa: ARG001
    """Imitate every measured trajectory with `n * softmax(reward / temperature)`, so that n equal ones have 1 each.

    The reward of a trajectory is the mean of its steps' rewards.
    """
    means = row_means(rewards)
    measured = [mean for mean in means if mean is not None]
    shares = iter(best_of(measured, temperature=options.imitation_temperature))
    each = [0.0 if mean is None else len(measured) * next(shares) for mean in means]
    return _scored(rewards, each, ZERO_ADVANTAGE)


def pair_sides(outcomes: Outcomes, rewards: Rows, options: PairOptions) -> ScoredRows:  # noqa: ARG001
    """Give +1 to successes and -1 to failures, if there are both."""
    both = {1, -1} <= set(outcomes)
    return _scored(rewards, [float(o or 0) if both else 0.0 for o in outcomes], NO_PAIR)


def _scored(rewards: Rows, each: Sequence[float], why: str) -> ScoredRows:
    return over_steps(rewards, Scored(tuple(each), tuple(reason(share, why) for share in each)))


JOBS.add(
    "ce",
    Job(name="ce", options=ImitationOptions, weigh=successes, fixes=_FIXES, needs_success=True),
)
JOBS.add("distil", Job(name="distil", options=DistillationOptions, weigh=better_ones, fixes=_FIXES))
JOBS.add(
    "dpo_pair",
    Job(
        name="dpo_pair",
        options=PairOptions,
        weigh=pair_sides,
        fixes={**_FIXES, "kl_beta": 0.0, "entropy_bonus": 0.0, "aggregation": "token_mean"},
        needs_success=True,
        pairs=True,
    ),
)


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
    """`softmax(values / temperature)`: how often each candidate is to be imitated (PA-RL, arXiv 2412.06685).

    0 imitates the best alone; ties share.
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
