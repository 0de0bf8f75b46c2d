"""RLVE: a learner whose skill grows meets levels from a window or from a fixed range; which of its groups teach it anything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import fmean

from methods.rlve.ladder import Ladder

_BLOCK = 100  # groups a point


def curve(seed: int, *, fixed: tuple[int, int] | None, groups: int = 1500) -> Iterator[float]:
    """Share of undecided groups of 16, neither all lost nor all won, in each hundred.

    At level d a learner of skill s succeeds with chance `1 / (1 + 10 ** (d - s))`; s grows by 1 in 100 groups whatever it meets.
    """
    draw, ladder = random.Random(seed), Ladder()  # noqa: S311 (a reproducible draw, not a secret)
    useful = list[bool]()
    for group in range(groups):
        level = draw.randint(*(fixed or (ladder.low, ladder.high)))
        rate = 1.0 / (1.0 + 10.0 ** (level - 1.0 - group / 100))
        hits = sum(draw.random() < rate for _ in range(16))
        useful.append(0 < hits < 16)
        ladder = ladder.after(level, hits, 16)
        if len(useful) % _BLOCK == 0:
            yield fmean(useful[-_BLOCK:])
