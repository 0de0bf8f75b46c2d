"""Intervals of shares, against published ones."""

import pytest

from triforge.algorithms.theory import wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)  # fmt: skip
def test_wilsons_interval_is_that_of_newcombes_table(successes, trials, low, high):
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_without_trials_a_share_may_be_anything():
    assert wilson(0, 0) == (0.0, 1.0)
