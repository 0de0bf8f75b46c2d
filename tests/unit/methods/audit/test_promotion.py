"""The test that a new version of the judge has to pass: its numbers by hand, and its error over a whole run."""

from __future__ import annotations

from math import comb

import pytest

from methods.audit.promotion import Comparison, balanced, compare


def test_rollouts_that_become_worse_are_counted_against_better_ones() -> None:
    standing = {"a": (2, 4, 0, 0), "b": (2, 4, 1, 1), "c": (2, 4, 0, 1), "d": (2, 4, 0, 0), "gone": (4, 4, 0, 0)}  # fmt: skip
    new = {"a": (1, 4, 0, 0), "b": (3, 4, 0, 1), "c": (1, 4, 1, 1), "d": (2, 4, 0, 0), "fresh": (4, 4, 0, 0)}  # fmt: skip
    found = compare(standing, new)
    # a vote on a bad step counts 1 of 16, one on a good step 1 of 2
    assert (found.better, found.worse) == (1, 2)
    assert found.p == pytest.approx(4 / 8)
    assert compare({}, {}) == Comparison(0, 0, 1.0)


def test_a_judge_that_always_disapproves_is_worse_although_more_of_its_votes_are_right() -> None:
    standing = {str(i): (7, 9, 1, 1) for i in range(32)}
    new = {str(i): (9, 9, 0, 1) for i in range(32)}
    assert compare(standing, new).refused(0.05, 30)
    assert balanced(standing) == pytest.approx((7 / 9 + 1) / 2)
    assert balanced(new) == 0.5
    assert balanced({"a": (1, 2, 0, 0)}) == 0.5


@pytest.mark.parametrize("tests", [1, 30, 1000])
def test_an_equal_version_is_refused_with_the_given_error_in_all_tests_together(tests: int) -> None:
    n, error = 40, 0.05
    standing = {str(i): (1, 2, 0, 0) for i in range(n)}
    chance = sum(
        comb(n, worse) / 2**n
        for worse in range(n + 1)
        if compare(standing, {str(i): (0 if i < worse else 2, 2, 0, 0) for i in range(n)}).refused(
            error, tests
        )
    )
    assert chance <= error / tests
    assert not Comparison(0, 40, 0.5**40).refused(0.0, tests), "an error of 0 refuses none"
