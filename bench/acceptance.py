"""Print how often a rewrite is accepted: one that changed nothing, and one that changed as wished.

Both rules side by side, K = 8 rollouts a group, band (0.2, 0.8). The published rule is computed exactly, given that the
parent's first group triggered the rewrite. Of the confident rule three figures: `at least` is an exact lower bound (see
`power_floor`), `played` the share in a simulation with a fixed seed, and `cost` the mean number of rollouts each arm was
played in it. Its measurement uses fresh groups only, so the trigger does not matter. `one look` is the exact power of
the same test without early looks: always 64 rollouts, what no sequential test of this kind can exceed by much.

Run: python -m bench.acceptance [trials]
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from triforge.algorithms.acceptance import (
    EDGE_DOUBT,
    FUTILITY,
    LOOKS,
    SPENDING,
    SequentialTest,
    paper_accepts,
)

K, LOW, HIGH, ALPHA, MAX_ROLLOUTS = 8, 0.2, 0.8, 0.05, 64
UNCHANGED = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
CHANGES = (
    (0.0, 0.25), (0.05, 0.3), (0.1, 0.35), (0.15, 0.4), (0.2, 0.45), (0.3, 0.55), (0.4, 0.65), (0.5, 0.75),
    (0.55, 0.8), (0.05, 0.2), (0.1, 0.25), (0.1, 0.5),
)  # fmt: skip

Array = NDArray[np.float64]


def binomial(n: int, p: float) -> Array:
    """Chances of 0..n successes."""
    return np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


def published(parent: float, candidate: float) -> float:
    """Exact P(accept | the first group was below the band) of an easier rewrite."""
    before, after = binomial(K, parent), binomial(K, candidate)
    trigger = [k for k in range(K + 1) if k / K < LOW]
    both = sum(
        before[k] * after[n]
        for k in trigger
        for n in range(K + 1)
        if paper_accepts("easier", k / K, n / K, LOW, HIGH)
    )
    return float(both / sum(before[k] for k in trigger))


def split(total: int) -> Array:
    """Chances of the candidate's successes in one pair of groups with `total` successes, if nothing changed."""
    ways = math.comb(2 * K, total)
    return np.array([math.comb(K, k) * math.comb(K, total - k) / ways if k <= total else 0.0 for k in range(K + 1)])  # fmt: skip


@cache
def worst_tail(pairs: int, total: int) -> tuple[float, ...]:
    """P(candidate has at least 0, 1, 2, ... of `total` successes) if nothing changed and the pairs' totals are about equal.

    No other way to spread `total` over the pairs gives a larger chance where it matters: see
    tests/unit/algorithms/test_acceptance_power.py, which goes through all of them.
    """
    each, rest = divmod(total, pairs)
    masses = np.ones(1)
    for index in range(pairs):
        masses = np.convolve(masses, split(each + (index < rest)))
    return tuple(np.minimum(np.cumsum(masses[::-1])[::-1], 1.0))


def looks() -> list[tuple[int, float]]:
    """(pairs played, p-value that is accepted whatever earlier looks have spent) of each look."""
    pairs = [math.ceil(share * MAX_ROLLOUTS / K) for share in LOOKS]
    budgets = [0.0, *(ALPHA * (K * n / MAX_ROLLOUTS) ** SPENDING for n in pairs)]
    return [(n, budgets[i + 1] - budgets[i]) for i, n in enumerate(pairs)]


@cache
def cut(pairs: int, level: float) -> tuple[int, ...]:
    """For every total of successes, how many of them the candidate needs for a p-value of at most `level`."""
    return tuple(
        next((k for k, p in enumerate(worst_tail(pairs, total)) if p <= level), 10**9)
        for total in range(2 * K * pairs + 1)
    )


def in_band(hits: int, measured: int) -> bool:
    if not 0 < hits < measured:
        return False
    at_edge = float(binomial(measured, HIGH)[hits:].sum())
    return hits <= HIGH * measured or at_edge > EDGE_DOUBT


def power_floor(
    parent: float, candidate: float, plan: Sequence[tuple[int, float]] | None = None
) -> float:
    """Exact lower bound of P(accept) of an easier rewrite by the confident rule.

    At each look the rule has at least the difference of two budgets left, and the exact p-value is at most `worst_tail`;
    so what passes both here is accepted. The rest is the joint distribution of the successes of both arms.

    Args:
        parent: chance that a rollout of the parent succeeds.
        candidate: the same of the candidate.
        plan: (pairs, level) of each look; those of the rule by default.
    """
    plan = looks() if plan is None else plan
    state, accepted, before = np.ones((1, 1)), 0.0, 0
    for look, (pairs, level) in enumerate(plan):
        more = K * (pairs - before)
        before = pairs
        state = _played(state, binomial(more, parent), binomial(more, candidate))
        size, needed = K * pairs, cut(pairs, level)
        band = [in_band(hits, size) for hits in range(size + 1)]
        for a in range(size + 1):
            for b in range(size + 1):
                if b >= needed[a + b] and band[b]:
                    accepted += state[a, b]
                    state[a, b] = 0.0
                elif look + 1 < len(plan) and ((b - a) / size <= FUTILITY[look] or _lost(b, size)):
                    state[a, b] = 0.0
    return accepted


def one_look(parent: float, candidate: float) -> float:
    """Exact power when all rollouts are played before the only look."""
    return power_floor(parent, candidate, [(MAX_ROLLOUTS // K, ALPHA)])


def _played(state: Array, parent: Array, candidate: Array) -> Array:
    rows = np.apply_along_axis(np.convolve, 0, state, parent)
    return np.apply_along_axis(np.convolve, 1, rows, candidate)


def _lost(hits: int, measured: int) -> bool:
    return not in_band(max(hits, 1), MAX_ROLLOUTS) and measured < MAX_ROLLOUTS


def confident(parent: float, candidate: float, trials: int) -> tuple[float, float]:
    """Share of accepted easier rewrites, and the mean rollouts an arm, in a simulation."""
    draw, accepted, cost = random.Random(17), 0, 0
    for _ in range(trials):
        test = SequentialTest("easier", low=LOW, high=HIGH, alpha=ALPHA, max_rollouts=MAX_ROLLOUTS)
        while test.decision.verdict == "continue":
            before = sum(draw.random() < parent for _ in range(K))
            after = sum(draw.random() < candidate for _ in range(K))
            test.add((before, K), (after, K))
        accepted += test.decision.verdict == "accept"
        cost += test.decision.candidate[1]
    return accepted / trials, cost / trials


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    print(
        "| success, parent -> candidate (easier) | published | confident: at least | played | cost | one look |"
    )
    print("|---|---|---|---|---|---|")
    for parent, candidate in [(p, p) for p in UNCHANGED] + list(CHANGES):
        share, cost = confident(parent, candidate, trials)
        floor = "" if parent == candidate else f"{power_floor(parent, candidate):.3f}"
        print(
            f"| {parent:.2f} -> {candidate:.2f} | {published(parent, candidate):.3f} | {floor} | {share:.3f} "
            f"| {cost:.0f} | {one_look(parent, candidate):.3f} |"
        )
    print("\nHarder is the mirror image: replace every p by 1 - p.")


if __name__ == "__main__":
    main()
