"""The test that a new version of the judge has to pass: its numbers by hand, and its error over a whole run."""

from __future__ import annotations

from math import comb

import pytest

from methods.audit.promotion import Comparison, compare


def test_worse_rollouts_are_counted_against_better_ones() -> None:
    standing = {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5, "gone": 1.0}
    new = {"a": 0.4, "b": 0.4, "c": 0.6, "d": 0.5, "fresh": 1.0}
    found = compare(standing, new)
    assert (found.better, found.worse) == (1, 2)
    assert found.p == pytest.approx(4 / 8)
    assert compare({}, {}) == Comparison(0, 0, 1.0)


@pytest.mark.parametrize("tests", [1, 30, 1000])
def test_an_equal_version_is_refused_with_the_given_error_in_all_tests_together(tests: int) -> None:
    n, error = 40, 0.05
    chance = sum(
        comb(n, worse) / 2**n
        for worse in range(n + 1)
        if compare(
            {str(i): 0.5 for i in range(n)}, {str(i): 0.0 if i < worse else 1.0 for i in range(n)}
        ).refused(error, tests)
    )
    assert chance <= error / tests
    assert not Comparison(0, 40, 0.5**40).refused(0.0, tests), "an error of 0 refuses none"


def test_a_version_that_is_worse_on_most_rollouts_is_refused() -> None:
    standing = {str(i): 0.9 for i in range(32)}
    new = {str(i): 0.5 if i < 28 else 1.0 for i in range(32)}
    assert compare(standing, new).refused(0.05, 30)
    assert not compare(new, standing).refused(0.05, 30)
