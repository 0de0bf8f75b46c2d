"""Comparison of each value with the others of the same task.

None is unmeasured and stays out of every comparison. An entry is trained on exactly when its reason is None; all others
have the advantage 0.0.

Sources: arXiv 2602.02488, Algorithm 1; the released code for lone steps and zero spread; GRPO (arXiv 2402.03300);
REINFORCE++ (arXiv 2501.03262) for whitening over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from triforge.algorithms.core import CoreOptions

T = TypeVar("T")
Rows = Sequence[Sequence[float | None]]
Cells = Sequence[tuple[int, int]]

UNMEASURED = "unmeasured"
LONE = "lone step"
LONE_VOTE = "lone vote"
ZERO_SPREAD = "zero spread"
NEGATIVE = "negative reward"  # in a group that `relative` would divide by its mean
ZERO_ADVANTAGE = "zero advantage"
UNANIMOUS = "unanimous votes"
UNREWARDED = "vote without reward"

# Differences smaller than this are rounding, not information (the released code's threshold).
NEGLIGIBLE = 1e-8

# The core options that `compared` reads, by `normalise`.
COMPARED: dict[str, tuple[str, ...]] = {
    "std": ("normalise", "std_floor", "std_eps", "std_ddof"),
    "mean": ("normalise",),
    "others": ("normalise",),
    "relative": ("normalise", "std_eps"),
    "raw": ("normalise",),
}


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
    normalise: str = "std",
    eps: float = 0.0,
) -> Scored:
    """Compare each value with the others.

    Args:
        std_floor: lowest divisor of `std`; keeps a hair's breadth of difference from becoming a full-size advantage.
        ddof: 0 population, 1 sample standard deviation.
        lone: what a single value becomes: "raw" itself, "zero" nothing.
        normalise: `std` is `(x - mean) / (max(std, std_floor) + eps)`, `mean` is `x - mean` (Dr. GRPO), `others` is x less the
            mean of the other values (RLOO), `relative` is `(x - mean) / (mean + eps)` (MaxRL), `raw` is x.
    """
    present = [value for value in values if value is not None]
    scores, common = present, None
    if normalise != "raw" and len(present) == 1:
        common = LONE if lone == "zero" else None
    elif normalise != "raw" and present:
        mean, std = mean_and_deviation(present, ddof=ddof)
        if std <= NEGLIGIBLE:
            common = ZERO_SPREAD
        elif normalise == "relative" and min(present) < 0.0:
            common = NEGATIVE
        else:
            divisor = {
                "std": max(std, std_floor) + eps,
                "mean": 1.0,
                "others": 1.0 - 1.0 / len(present),
                "relative": mean + eps,
            }[normalise]
            scores = [(value - mean) / divisor for value in present]
    each = iter([(0.0, why) if (why := common or reason(s)) else (s, None) for s in scores])
    scored = [(0.0, UNMEASURED) if value is None else next(each) for value in values]
    return Scored(tuple(score for score, _ in scored), tuple(why for _, why in scored))


def compared(
    values: Sequence[float | None], algorithm: CoreOptions, *, lone: str = "zero"
) -> Scored:
    """`standardise` by the options `normalise`, `std_floor`, `std_eps` and `std_ddof`."""
    return standardise(
        values,
        std_floor=algorithm.std_floor,
        ddof=algorithm.std_ddof,
        lone=lone,
        normalise=algorithm.normalise,
        eps=algorithm.std_eps,
    )


def compared_within(
    rows: Rows, scopes: Iterable[Cells], algorithm: CoreOptions, *, lone: str = "zero"
) -> ScoredRows:
    """Compare the values of each scope, cells `(row, place)`, with each other; a cell of no scope is alone."""
    advantages = [[0.0] * len(row) for row in rows]
    reasons: list[list[str | None]] = [[UNMEASURED if v is None else LONE for v in r] for r in rows]
    for cells in scopes:
        scored = compared([rows[i][j] for i, j in cells], algorithm, lone=lone)
        for (i, j), advantage, why in zip(cells, scored.advantages, scored.reasons, strict=True):
            advantages[i][j], reasons[i][j] = advantage, why
    return ScoredRows(frozen(advantages), frozen(reasons))


def over_steps(rewards: Rows, scored: Scored) -> ScoredRows:
    """Return the advantage of each trajectory on all its measured steps."""
    advantages, reasons = [], []
    for row, advantage, why in zip(rewards, scored.advantages, scored.reasons, strict=True):
        advantages.append(tuple(0.0 if reward is None else advantage for reward in row))
        reasons.append(tuple(UNMEASURED if reward is None else why for reward in row))
    return ScoredRows(tuple(advantages), tuple(reasons))


def added(rewards: Rows, first: ScoredRows, second: ScoredRows, weight: float) -> ScoredRows:
    """Return `A = A_1 + weight * A_2` on every measured step; where that is 0, with the reason of the first."""
    advantages, reasons = [], []
    parts = zip(rewards, first.advantages, second.advantages, first.reasons, strict=True)
    for row, a, b, whys in parts:
        sums = [0.0 if r is None else x + weight * y for r, x, y in zip(row, a, b, strict=True)]
        cells = zip(row, sums, whys, strict=True)
        advantages.append(sums)
        reasons.append(
            [UNMEASURED if r is None else reason(s, w or ZERO_ADVANTAGE) for r, s, w in cells]
        )
    return ScoredRows(frozen(advantages), frozen(reasons))


def whitened(
    values: Sequence[float], counts: Sequence[int], *, ddof: int = 0, eps: float = 0.0
) -> list[float]:
    """Zero mean and unit deviation over all tokens of a batch, given each response's value and tokens; equal ones become 0."""
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
    """Return the mean of each trajectory's measured steps; None without any."""
    present = [[value for value in row if value is not None] for row in rows]
    return [math.fsum(values) / len(values) if values else None for values in present]


def reason(advantage: float, why: str = ZERO_ADVANTAGE) -> str | None:
    """Why an entry of this advantage is not trained on; None if it is."""
    return why if abs(advantage) <= NEGLIGIBLE else None


def frozen(rows: Iterable[Iterable[T]]) -> tuple[tuple[T, ...], ...]:
    """Return lists of lists as tuples of tuples."""
    return tuple(tuple(row) for row in rows)
