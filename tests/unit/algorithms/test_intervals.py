"""Intervals of shares, against published ones and by how often they hold the truth."""

import numpy as np
import pytest

from triforge.algorithms.theory import share_interval, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)  # fmt: skip
def test_wilsons_interval_is_that_of_newcombes_table(successes, trials, low, high):
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_without_groups_or_trials_a_share_may_be_anything():
    assert wilson(0, 0) == share_interval([]) == share_interval([(0, 0)]) == (0.0, 1.0)
    assert share_interval([(1, 2, 0, 0)] * 8) == (0.0, 1.0)


def test_a_share_over_groups_is_held_as_often_as_the_interval_says():
    # 24 tasks of very different difficulty, 8 rollouts each, mean success 0.3; and of two kinds, mean (0.3 + 0.7) / 2
    rng = np.random.default_rng(3)
    shares = rng.beta(0.6, 1.4, size=(300, 24))
    hits = rng.binomial(8, shares)
    others = rng.binomial(8, 1 - rng.beta(0.6, 1.4, size=(300, 24)))

    def held(truth, intervals):
        return np.mean([low <= truth <= high for low, high in intervals])

    one = [share_interval([(h, 8) for h in row]) for row in hits]
    two = [
        share_interval([(h, 8, o, 8) for h, o in zip(*rows, strict=True)])
        for rows in zip(hits, others, strict=True)
    ]
    naive = [wilson(row.sum(), 8 * len(row)) for row in hits]
    assert 0.92 <= held(0.3, one) <= 0.99
    assert 0.92 <= held(0.5, two) <= 0.99
    assert held(0.3, naive) < 0.8  # what takes rollouts of a task for independent


def test_a_share_over_groups_of_one_trial_is_nearly_wilsons():
    rows = [(n < 12, 1) for n in range(40)]
    assert share_interval(rows) == pytest.approx(wilson(12, 40), abs=0.01)
    assert share_interval([(8, 8)] * 20) == wilson(20, 20)
