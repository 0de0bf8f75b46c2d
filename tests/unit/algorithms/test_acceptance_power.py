"""The power of the confident rule, by exact computation: joint binomials under a bound that every way to split obeys."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bench.acceptance import (
    ALPHA,
    K,
    ceiling,
    cut,
    exact,
    looks,
    one_look,
    power_floor,
    split,
    worst_tail,
)
from triforge.algorithms.acceptance import SequentialTest


def test_what_the_looks_may_spend_adds_up_to_alpha() -> None:
    assert sum(level for _, level in looks()) == pytest.approx(ALPHA)
    assert looks()[-1][0] * K == 64


def ways(pairs: int) -> dict[int, np.ndarray]:
    """Total -> distributions of the candidate's successes, one a way to spread the total over the pairs (any order)."""
    found: dict[int, list[np.ndarray]] = {}
    for totals in itertools.combinations_with_replacement(range(2 * K + 1), pairs):
        masses = np.ones(1)
        for total in totals:
            masses = np.convolve(masses, split(total))
        found.setdefault(sum(totals), []).append(masses)
    return {total: np.array(rows) for total, rows in found.items()}


@pytest.mark.parametrize(("pairs", "level"), looks())
def test_no_way_to_spread_the_successes_has_a_larger_tail_than_the_even_one(
    pairs: int, level: float
) -> None:
    # All multisets of totals are two halves; P(sum >= cut) of every combination is one matrix product a pair of totals.
    first, second = ways(pairs // 2), ways(pairs - pairs // 2)
    needed, tails = cut(pairs, level), {}
    for (total, left), (more, right) in itertools.product(first.items(), second.items()):
        k = needed[total + more]
        if k > K * pairs:
            continue
        beyond = np.cumsum(right[:, ::-1], axis=1)[:, ::-1]  # P(right >= j)
        beyond = np.concatenate([np.ones((len(right), left.shape[1])), beyond], axis=1)
        at = np.clip(k - np.arange(left.shape[1]), -left.shape[1], right.shape[1])
        padded = np.concatenate([beyond, np.zeros((len(right), 1))], axis=1)
        worst = float((left @ padded[:, at + left.shape[1]].T).max())
        tails[total + more] = max(tails.get(total + more, 0.0), worst)
    for total, worst in tails.items():
        assert worst == pytest.approx(worst_tail(pairs, total)[needed[total]]), total
        assert worst <= level + 1e-12
    assert len(tails) > 2 * K * pairs - 30


BELOW, MIDDLE = (0.0, 0.03, 0.05, 0.08, 0.1, 0.13, 0.15, 0.17, 0.2), (0.25, 0.3, 0.35, 0.375, 0.4)


@pytest.mark.parametrize(
    ("parent", "candidate", "power"),
    [
        *((parent, parent + 0.25, 0.85) for parent in BELOW),
        *((parent, parent + 0.25, 0.8) for parent in MIDDLE),
        *[(0.2, 0.5, 0.95), (0.1, 0.3, 0.82), (0.5, 0.75, 0.71), (0.02, 0.1, 0.42)],
        (0.1, 0.2, 0.34),
    ],
)
def test_an_easier_task_is_accepted_at_least_so_often(
    parent: float, candidate: float, power: float
) -> None:
    assert power_floor(parent, candidate) >= power


@pytest.mark.parametrize(("candidate", "chance"), [(0.9, 0.1), (0.95, 0.03)])
def test_a_task_that_nearly_everybody_solves_is_seldom_taken(
    candidate: float, chance: float
) -> None:
    assert power_floor(0.05, candidate) <= ceiling(candidate) <= chance


def test_the_exact_chance_lies_between_its_bounds_and_is_that_of_the_rule() -> None:
    for parent, candidate in ((0.02, 0.02), (0.02, 0.1)):
        found = exact(parent, candidate, miss=1e-3)
        assert power_floor(parent, candidate) <= found + 3e-3 <= ceiling(candidate)
        share = _played(parent, candidate, trials=600)
        assert abs(found - share) < 4 * (found * (1 - found) / 600) ** 0.5 + 3e-3


def _played(parent: float, candidate: float, trials: int) -> float:
    """Share of accepted easier rewrites among seeded simulations of the rule itself."""
    draw, accepted = random.Random(23), 0
    for _ in range(trials):
        test = SequentialTest("easier", low=0.2, high=0.8, alpha=ALPHA, max_rollouts=64)
        while test.decision.verdict == "continue":
            counts = [sum(draw.random() < p for _ in range(K)) for p in (parent, candidate)]
            test.add((counts[0], K), (counts[1], K))
        accepted += test.decision.verdict == "accept"
    return accepted / trials


def test_early_looks_cost_little_power() -> None:
    for parent in (0.1, 0.375, 0.5):
        assert one_look(parent, parent + 0.25) - power_floor(parent, parent + 0.25) < 0.04


def test_an_unchanged_task_is_accepted_at_most_alpha() -> None:
    for rate in np.linspace(0.0, 1.0, 21):
        assert one_look(rate, rate) <= ALPHA
        assert power_floor(rate, rate) <= ALPHA
    assert exact(0.05, 0.05, miss=1e-2) + 3e-2 * ALPHA <= ALPHA
