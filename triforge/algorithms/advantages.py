"""Comparison: how much better or worse each value is than what else was tried on the same task.

Entries that are None (unmeasured) stay out of every comparison. An entry is trained on exactly when its reason is None;
all others have the advantage 0.0.

Sources: arXiv 2602.02488, Algorithm 1; the released code for lone steps and zero spread; GRPO (arXiv 2402.03300);
REINFORCE++ (arXiv 2501.03262) for whitening over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from triforge.algorithms.core import CoreOptions
from triforge.errors import InputError

T = TypeVar("T")
Rows = Sequence[Sequence[float | None]]

UNMEASURED = "unmeasured"
LONE = "lone step"
LONE_VOTE = "lone vote"
ZERO_SPREAD = "zero spread"
ZERO_ADVANTAGE = "zero advantage"
UNANIMOUS = "unanimous votes"
UNREWARDED = "vote without reward"

# Differences smaller than this are rounding, not information (the released code's threshold).
NEGLIGIBLE = 1e-8


@dataclass(frozen=True, slots=True)
class Scored:
    """Advantages and reasons of one flat list of entries, aligned with it."""

    advantages: tuple[float, ...]
    reasons: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Advantages and reasons, `[trajectory][step]` or `[step][vote]`, aligned with the rewards."""

    advantages: tuple[tuple[float, ...], ...]
    reasons: tuple[tuple[str | None, ...], ...]


def standardise(
    values: Sequence[float | None],
    *,
    std_floor: float = 0.0,
    ddof: int = 0,
    lone: str = "zero",
    how: str = "std",
    eps: float = 0.0,
) -> Scored:
    """Each value against the others, over the values that are not None.

    Args:
        values: rewards that are compared with each other.
        std_floor: lowest divisor of `std`; keeps a hair's breadth of difference from becoming a full-size advantage.
        ddof: 0 population, 1 sample standard deviation.
        lone: what a single value becomes: "raw" itself, "zero" nothing.
        how: `std` is `(x - mean) / (max(std, std_floor) + eps)`, `mean` is `x - mean` (Dr. GRPO), `others` is x less the
            mean of the other values (RLOO), `relative` is `(x - mean) / (mean + eps)` (MaxRL), `raw` is x.
        eps: added to the divisor.

    Raises:
        InputError: `relative` is asked of a negative value.
    """
    present = [value for value in values if value is not None]
    if not present:
        return Scored((0.0,) * len(values), (UNMEASURED,) * len(values))
    if how == "raw":
        return _filled(values, present, [reason(value) for value in present])
    if len(present) == 1 and lone == "zero":
        return _filled(values, [0.0], [LONE])
    if len(present) == 1:
        return _filled(values, present, [reason(present[0])])
    mean, std = mean_and_deviation(present, ddof=ddof)
    if std <= NEGLIGIBLE:
        return _filled(values, [0.0] * len(present), [ZERO_SPREAD] * len(present))
    if how == "relative" and min(present) < 0.0:
        raise InputError(
            f"rewards: given {min(present)}, expected at least 0: normalise = 'relative' divides by their mean"
        )
    divisor = {
        "std": max(std, std_floor) + eps,
        "mean": 1.0,
        "others": 1.0 - 1.0 / len(present),
        "relative": mean + eps,
    }[how]
    scores = [(value - mean) / divisor for value in present]
    return _filled(values, scores, [reason(score) for score in scores])


def compared(
    values: Sequence[float | None], algorithm: CoreOptions, *, lone: str = "zero"
) -> Scored:
    """`standardise` by the options `normalise`, `std_floor`, `std_eps` and `std_ddof`."""
    return standardise(
        values,
        std_floor=algorithm.std_floor,
        ddof=algorithm.std_ddof,
        lone=lone,
        how=algorithm.normalise,
        eps=algorithm.std_eps,
    )


def vote_advantages(
    votes: Sequence[Sequence[int]], rewards: Rows, algorithm: CoreOptions
) -> ScoredRows:
    """Compare the votes on one task, over one step or over all its steps (`vote_scope`).

    With `invalid_votes = "apart"` unparsable votes stay out of mean and deviation and lie `invalid_vote_margin` below
    the worst valid vote and below 0, so that they never make a wrong vote look good.

    Args:
        votes: `votes[i][j]` in {-1, 0, +1} for all judged steps i of the task, all trajectories in one list.
        rewards: `rewards[i][j]` of each vote; None where unmeasured.
        algorithm: reads the options of votes, `std_floor` and `std_ddof`.
    """
    cells = [(i, j) for i, row in enumerate(votes) for j in range(len(row))]
    by_step = [[(i, j) for j in range(len(row))] for i, row in enumerate(votes)]
    advantages = [[0.0] * len(row) for row in votes]
    reasons: list[list[str | None]] = [[None] * len(row) for row in votes]
    for scope in [cells] if algorithm.vote_scope == "task" else by_step:
        _score_votes(scope, votes, rewards, algorithm, advantages, reasons)
    return ScoredRows(frozen(advantages), frozen(reasons))


def _score_votes(
    scope: Sequence[tuple[int, int]],
    votes: Sequence[Sequence[int]],
    rewards: Rows,
    algorithm: CoreOptions,
    advantages: list[list[float]],
    reasons: list[list[str | None]],
) -> None:
    """Fill in the cells of one scope."""
    apart = algorithm.invalid_votes == "apart"
    measured = {(i, j) for i, j in scope if rewards[i][j] is not None}
    dropped = {(i, j) for i, j in measured if algorithm.drop_unanimous and _unanimous(votes[i])}
    outside = {(i, j) for i, j in measured - dropped if apart and votes[i][j] == 0}
    within = [cell for cell in scope if cell not in dropped and cell not in outside]
    scored = standardise(
        [rewards[i][j] for i, j in within], std_floor=algorithm.std_floor, ddof=algorithm.std_ddof
    )
    for (i, j), advantage, why in zip(within, scored.advantages, scored.reasons, strict=True):
        reward = rewards[i][j]
        gift = advantage > 0.0 and reward is not None and reward <= 0.0
        if gift and not algorithm.reinforce_unrewarded_votes:
            advantage, why = 0.0, UNREWARDED
        advantages[i][j] = advantage
        reasons[i][j] = LONE_VOTE if why == LONE else why
    worst = min([0.0, *(advantages[i][j] for i, j in within)])
    for i, j in outside:
        advantages[i][j] = worst - algorithm.invalid_vote_margin
    for i, j in dropped:
        reasons[i][j] = UNANIMOUS


def whitened(
    values: Sequence[float], counts: Sequence[int], *, ddof: int = 0, eps: float = 0.0
) -> list[float]:
    """Zero mean and unit deviation over all tokens of a batch; equal values all become 0.

    Args:
        values: one a response.
        counts: its tokens.
        ddof: 0 population, 1 sample standard deviation.
        eps: added to the deviation.
    """
    total = sum(counts)
    if total <= ddof:
        return [0.0] * len(values)
    mean = math.fsum(v * n for v, n in zip(values, counts, strict=True)) / total
    squares = math.fsum(n * (v - mean) ** 2 for v, n in zip(values, counts, strict=True))
    std = math.sqrt(squares / (total - ddof))
    if std <= NEGLIGIBLE:
        return [0.0] * len(values)
    return [(v - mean) / (std + eps) for v in values]


def mean_and_deviation(values: Sequence[float], *, ddof: int = 0) -> tuple[float, float]:
    """Mean and standard deviation, whatever the order of the values; with `ddof` 1 the deviation of one value is 0."""
    n = len(values)
    mean = math.fsum(values) / n
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (n - ddof)) if n > ddof else 0.0


def row_means(rows: Rows) -> list[float | None]:
    """The mean of each trajectory's measured steps; None without any."""
    present = [[value for value in row if value is not None] for row in rows]
    return [mean_and_deviation(values)[0] if values else None for values in present]


def reason(advantage: float, why: str = ZERO_ADVANTAGE) -> str | None:
    """Why an entry of this advantage is not trained on; None if it is."""
    return why if abs(advantage) <= NEGLIGIBLE else None


def over_steps(rewards: Rows, scored: Scored) -> ScoredRows:
    """The advantage of each trajectory on all its measured steps."""
    advantages, reasons = [], []
    for row, advantage, why in zip(rewards, scored.advantages, scored.reasons, strict=True):
        advantages.append(tuple(0.0 if reward is None else advantage for reward in row))
        reasons.append(tuple(UNMEASURED if reward is None else why for reward in row))
    return ScoredRows(tuple(advantages), tuple(reasons))


def added(rewards: Rows, first: ScoredRows, second: ScoredRows, weight: float) -> ScoredRows:
    """`A = A_1 + weight * A_2` on every measured step; where it is nothing, the first says why."""
    advantages, reasons = [], []
    for row, a, b, whys in zip(
        rewards, first.advantages, second.advantages, first.reasons, strict=True
    ):
        sums = [x + weight * y for x, y in zip(a, b, strict=True)]
        known = [value is not None for value in row]
        advantages.append(tuple(s if k else 0.0 for s, k in zip(sums, known, strict=True)))
        reasons.append(
            tuple(
                reason(s, why or ZERO_ADVANTAGE) if k else UNMEASURED
                for s, k, why in zip(sums, known, whys, strict=True)
            )
        )
    return ScoredRows(tuple(advantages), tuple(reasons))


def frozen(rows: Sequence[Sequence[T]]) -> tuple[tuple[T, ...], ...]:
    """Lists of lists as tuples of tuples."""
    return tuple(tuple(row) for row in rows)


def _unanimous(votes: Sequence[int]) -> bool:
    return len(votes) > 1 and len(set(votes)) == 1 and votes[0] != 0


def _filled(
    values: Sequence[float | None], scores: Sequence[float], reasons: Sequence[str | None]
) -> Scored:
    """Put the scores of the present values back between the missing ones."""
    pairs = iter(zip(scores, reasons, strict=True))
    advantages: list[float] = []
    whys: list[str | None] = []
    for value in values:
        score, why = (0.0, UNMEASURED) if value is None else next(pairs)
        advantages.append(0.0 if why is not None else score)
        whys.append(why)
    return Scored(tuple(advantages), tuple(whys))
