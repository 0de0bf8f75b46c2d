"""The test that a new version of the judge has to pass: its numbers by hand, and its error over a whole run."""

from __future__ import annotations

from math import comb

import pytest

from methods.audit.promotion import Comparison, compare, competence, total
from triforge.algorithms.vote_errors import VoteErrors


def bad(votes: int, praised: int) -> VoteErrors:
    """Votes on steps labelled -1."""
    return VoteErrors(good=0, missed=0, bad=votes, praised=praised)


def both(bad: int, praised: int, good: int, missed: int) -> VoteErrors:
    return VoteErrors(good=good, missed=missed, bad=bad, praised=praised)


def test_rollouts_that_become_worse_are_counted_against_better_ones() -> None:
    standing = {"a": bad(4, 2), "b": both(4, 2, 1, 0), "c": both(4, 2, 1, 1), "d": bad(4, 2), "gone": bad(4, 0)}  # fmt: skip
    new = {"a": bad(4, 3), "b": both(4, 1, 1, 1), "c": both(4, 3, 1, 0), "d": bad(4, 2), "fresh": bad(4, 0)}  # fmt: skip
    found = compare(standing, new)
    # a vote on a bad step counts 1 of 16, one on a good step 1 of 2
    assert (found.better, found.worse) == (1, 2)
    assert found.p == pytest.approx(4 / 8)
    assert compare({}, {}) == Comparison(0, 0, 1.0)


def test_a_judge_that_always_disapproves_is_worse_although_more_of_its_votes_are_right() -> None:
    standing = {str(i): both(9, 2, 1, 0) for i in range(32)}
    new = {str(i): both(9, 0, 1, 1) for i in range(32)}
    assert compare(standing, new).refused(0.05, 30)
    assert total(standing.values()).balanced == pytest.approx((7 / 9 + 1) / 2)
    assert competence(standing.values()) == pytest.approx(7 / 9)
    assert competence(new.values()) == 0.0
    assert competence([]) == 1.0
    assert competence([bad(4, 3)]) == 0.25, "nothing is known of one side"


@pytest.mark.parametrize("tests", [1, 30, 1000])
def test_an_equal_version_is_refused_with_the_given_error_in_all_tests_together(tests: int) -> None:
    n, error = 40, 0.05
    standing = {str(i): bad(2, 1) for i in range(n)}
    chance = sum(
        comb(n, worse) / 2**n
        for worse in range(n + 1)
        if compare(standing, {str(i): bad(2, 2 if i < worse else 0) for i in range(n)}).refused(
            error, tests
        )
    )
    assert chance <= error / tests
    assert not Comparison(0, 40, 0.5**40).refused(0.0, tests), "an error of 0 refuses none"
