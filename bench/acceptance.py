"""Print how often a rewrite is accepted: one that changed nothing, and one that changed as wished.

Both rules side by side, K = 8 rollouts a group, band (0.2, 0.8), all exact: no figure but `cost` is simulated. The published
rule is computed given that the parent's first group triggered the rewrite. The measurement of the confident rule uses fresh
groups only, so the trigger does not matter. Its figures: `accepted`, over all ways in which the rollouts can fall (see
`exact`); `cost`, the mean number of rollouts each arm was played in a simulation with a fixed seed; `one look`, a lower
bound of the same test without early looks: always 64 rollouts, what no sequential test of this kind can exceed by much.

Run: python -m bench.acceptance [trials]
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from triforge.algorithms.acceptance import FUTILITY, LOOKS, SPENDING, SequentialTest, paper_accepts

K, LOW, HIGH, ALPHA, MAX_ROLLOUTS = 8, 0.2, 0.8, 0.05, 64
UNCHANGED = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
CHANGES = (
    (0.0, 0.25), (0.05, 0.3), (0.1, 0.35), (0.15, 0.4), (0.2, 0.45), (0.3, 0.55), (0.4, 0.65), (0.5, 0.75),
    (0.55, 0.8), (0.2, 0.5), (0.1, 0.3), (0.02, 0.1), (0.1, 0.2), (0.05, 0.9), (0.05, 0.95),
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
    return 0 < hits < measured and hits / measured <= HIGH


def power_floor(
    parent: float, candidate: float, plan: Sequence[tuple[int, float]] | None = None
) -> float:
    """Exact lower bound of P(accept) of an easier rewrite by the confident rule.

    At each look the rule has at least the difference of two budgets left, and the exact p-value is at most `worst_tail`;
    so what passes both here is accepted. The rest is the joint distribution of the successes of both arms.
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


def ceiling(candidate: float) -> float:
    """Exact upper bound of P(accept) of an easier rewrite, whatever its parent: the chance to be in the band at some look."""
    state, accepted, before = np.ones(1), 0.0, 0
    for pairs, _ in looks():
        state = np.convolve(state, binomial(K * (pairs - before), candidate))
        before = pairs
        inside = [in_band(hits, K * pairs) for hits in range(K * pairs + 1)]
        accepted += float(state[inside].sum())
        state[inside] = 0.0
    return accepted


@dataclass(frozen=True)
class Block:
    """The pairs between two looks: each likely multiset of their totals, a row each.

    `null` and `true` are the chances of the candidate's successes given the totals: if nothing changed, and as it is.
    """

    size: int  # rollouts an arm, with all blocks before
    budget: float  # error that may be spent up to its look
    chance: Array
    total: Array
    null: Array
    true: Array


def blocks(parent: float, candidate: float, miss: float) -> list[Block]:
    """Return the blocks of the rule; multisets of totals that weigh at most `miss` in all are left out of each."""
    both = np.outer(binomial(K, parent), binomial(K, candidate))
    joint = [np.array([both[t - k, k] if 0 <= t - k <= K else 0.0 for k in range(K + 1)]) for t in range(2 * K + 1)]  # fmt: skip
    weight = np.array([row.sum() for row in joint])
    given = [row / w if w else split(t) for t, (row, w) in enumerate(zip(joint, weight, strict=True))]  # fmt: skip
    found, before = list[Block](), 0
    for pairs in (math.ceil(share * MAX_ROLLOUTS / K) for share in LOOKS):
        ways = []
        for totals in itertools.combinations_with_replacement(range(2 * K + 1), pairs - before):
            orders = math.factorial(len(totals))
            for same in set(totals):
                orders //= math.factorial(totals.count(same))
            ways.append((orders * float(weight[list(totals)].prod()), totals))
        ways.sort(reverse=True)
        kept = int(np.searchsorted(np.cumsum([w for w, _ in ways]), 1.0 - miss)) + 1
        null, true = (
            np.array([_convolved([row[t] for t in totals]) for _, totals in ways[:kept]])
            for row in ([split(t) for t in range(2 * K + 1)], given)
        )
        size, before = K * pairs, pairs
        budget = ALPHA * (1.0 if size >= MAX_ROLLOUTS else (size / MAX_ROLLOUTS) ** SPENDING)
        chance = np.array([w for w, _ in ways[:kept]])
        chance /= chance.sum()
        total = np.array([sum(totals) for _, totals in ways[:kept]])
        found.append(Block(size, budget, chance, total, null, true))
    return found


def exact(parent: float, candidate: float, miss: float = 5e-4) -> float:
    """P(accept) of an easier rewrite by the confident rule.

    The rule sees the pairs' totals and the candidate's successes, and what it accepts depends on the totals alone. So it is
    run on the distribution of the successes once for every likely way to draw the totals. Off by at most 3 `miss`.
    """
    one = np.ones(1)
    return _accepted(blocks(parent, candidate, miss), 0, (one, one, one), 0.0, 0)


def _accepted(
    plan: list[Block], look: int, state: tuple[Array, Array, Array], spent: float, total: int
) -> float:
    """P(accept) from a look on; `state`: chances of the successes if nothing changed, of those on open paths, and as it is."""
    block = plan[look]
    null, left, true = (
        rows @ _shifted(before, rows.shape[1])
        for rows, before in zip((block.null, block.null, block.true), state, strict=True)
    )
    hits = np.arange(block.size + 1)
    beyond, p = (np.cumsum(rows[:, ::-1], axis=1)[:, ::-1] for rows in (left, null))
    inside = np.array([in_band(int(k), block.size) for k in hits])
    taken = (beyond <= block.budget - spent) & (p <= ALPHA) & inside
    found = float(block.chance @ (true * taken).sum(axis=1))
    if look + 1 == len(plan):
        return found
    each = spent + (left * taken).sum(axis=1)
    totals = total + block.total
    change = (2 * hits - totals[:, None]) / block.size
    over = taken | (change <= FUTILITY[look])
    left[over] = true[over] = 0.0
    true[:, [_lost(int(k), block.size) for k in hits]] = 0.0
    return found + sum(
        float(chance) * _accepted(plan, look + 1, (null[i], left[i], true[i]), each[i], totals[i])
        for i, chance in enumerate(block.chance)
    )


def _shifted(row: Array, count: int) -> Array:
    """`count` rows: the row, the row one to the right, and so on; a product with it convolves."""
    found = np.zeros((count, len(row) + count - 1))
    for shift in range(count):
        found[shift, shift : shift + len(row)] = row
    return found


def _convolved(rows: Sequence[Array]) -> Array:
    masses = np.ones(1)
    for row in rows:
        masses = np.convolve(masses, row)
    return masses


def one_look(parent: float, candidate: float) -> float:
    """Exact power when all rollouts are played before the only look."""
    return power_floor(parent, candidate, [(MAX_ROLLOUTS // K, ALPHA)])


def _played(state: Array, parent: Array, candidate: Array) -> Array:
    rows = np.apply_along_axis(np.convolve, 0, state, parent)
    return np.apply_along_axis(np.convolve, 1, rows, candidate)


def _lost(hits: int, measured: int) -> bool:
    return not in_band(max(hits, 1), MAX_ROLLOUTS) and measured < MAX_ROLLOUTS


def cost(parent: float, candidate: float, trials: int) -> float:
    """Return the mean rollouts an arm of an easier rewrite, by simulation."""
    draw, played = random.Random(17), 0
    for _ in range(trials):
        test = SequentialTest("easier", low=LOW, high=HIGH, alpha=ALPHA, max_rollouts=MAX_ROLLOUTS)
        while test.decision.verdict == "continue":
            before = sum(draw.random() < parent for _ in range(K))
            after = sum(draw.random() < candidate for _ in range(K))
            test.add((before, K), (after, K))
        played += test.decision.candidate[1]
    return played / trials


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    print("| success, parent -> candidate (easier) | published | accepted | cost | one look |")
    print("|---|---|---|---|---|")
    for parent, candidate in [(p, p) for p in UNCHANGED] + list(CHANGES):
        print(
            f"| {parent:.2f} -> {candidate:.2f} | {published(parent, candidate):.3f} | {exact(parent, candidate):.3f} "
            f"| {cost(parent, candidate, trials):.0f} | {one_look(parent, candidate):.3f} |"
        )
    print("\nHarder is the mirror image: replace every p by 1 - p.")


if __name__ == "__main__":
    main()
