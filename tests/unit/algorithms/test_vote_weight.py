"""Advantages of hand-made groups by each weight of the votes: four rollouts of one step each."""

import math

import pytest

from tests.rollouts import step_credit
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.theory import count_votes, trust

CONSTANT = resolve("rlanything")
TRUST = resolve("rlanything", {"vote_weight": "trust"})
OUTCOME = resolve("rlanything", {"use_votes": False})

MIXED, ALL_FAIL, ALL_WIN = [1, 1, -1, -1], [-1] * 4, [1] * 4
GOOD, CHANCE, INVERTED = [1, 1, -1, -1], [1, -1, 1, -1], [-1, -1, 1, 1]
ONE_PRAISED = [1, -1, -1, -1]
CAP = 1 / 3  # vote_share 0.25: one part votes to three parts outcome


def advantages(preset, outcomes, votes, trusted=0.0):
    credit = step_credit(outcomes, [[[v]] for v in votes], algorithm=preset, trust=trusted)
    return [row[0] for row in credit.advantages]


def measured(votes):
    """Trust after sixteen mixed groups with these votes."""
    return trust([count_votes(MIXED, [[[v]] for v in votes])] * 16)


def approx(*values):
    return pytest.approx(values, abs=1e-12)


def test_mixed_group_good_votes():
    assert advantages(CONSTANT, MIXED, GOOD) == approx(1, 1, -1, -1)
    assert advantages(OUTCOME, MIXED, GOOD) == approx(1, 1, -1, -1)
    got = advantages(TRUST, MIXED, GOOD, measured(GOOD))
    assert got == approx(1 + CAP, 1 + CAP, -1 - CAP, -1 - CAP)


def test_mixed_group_votes_at_chance():
    r = math.sqrt(2)
    assert advantages(CONSTANT, MIXED, CHANCE) == approx(r, 0, 0, -r)  # half of the outcome is lost
    assert advantages(TRUST, MIXED, CHANCE, measured(CHANCE)) == approx(1, 1, -1, -1)
    # Good on other groups, by chance here: they shift, they never outvote.
    assert advantages(TRUST, MIXED, CHANCE, 0.2) == approx(1.2, 0.8, -0.8, -1.2)


def test_mixed_group_inverted_votes():
    assert advantages(CONSTANT, MIXED, INVERTED) == [0, 0, 0, 0]  # all outcomes are cancelled
    assert advantages(TRUST, MIXED, INVERTED, measured(INVERTED)) == approx(1, 1, -1, -1)
    assert advantages(TRUST, MIXED, INVERTED, 1.0) == approx(1 - CAP, 1 - CAP, CAP - 1, CAP - 1)


@pytest.mark.parametrize(("outcomes", "sign"), [(ALL_FAIL, 1), (ALL_WIN, -1)])
def test_groups_of_one_outcome_have_advantages_of_the_size_of_the_trust(outcomes, sign):
    votes = ONE_PRAISED if sign == 1 else [-v for v in ONE_PRAISED]
    full = [sign * a for a in (math.sqrt(3), *[-1 / math.sqrt(3)] * 3)]
    assert advantages(CONSTANT, outcomes, votes) == approx(*full)  # as large as a rare success's
    assert advantages(OUTCOME, outcomes, votes) == [0, 0, 0, 0]
    assert advantages(TRUST, outcomes, votes, measured(CHANCE)) == [0, 0, 0, 0]
    assert advantages(TRUST, outcomes, votes, 0.1) == approx(*(0.1 * a for a in full))
    assert advantages(TRUST, outcomes, votes, measured(GOOD)) == approx(*(CAP * a for a in full))


def test_a_smaller_lambda_does_nothing_to_a_group_of_one_outcome_but_a_smaller_trust_does():
    small = resolve("rlanything", {"lam": 0.1, "std_floor": 0.0})
    full = advantages(CONSTANT, ALL_FAIL, ONE_PRAISED)
    assert advantages(small, ALL_FAIL, ONE_PRAISED) == approx(*full)
    scaled = resolve("rlanything", {"vote_weight": "trust", "lam": 0.1})
    assert advantages(scaled, ALL_FAIL, ONE_PRAISED, 1.0) == approx(*(0.1 * a for a in full))


def test_a_stray_vote_is_not_blown_up():
    # One vote of three on one of four failures: mean votes -1/3, -1, -1, -1; deviation 0.289 is raised to 0.5.
    votes = [[[-1, -1, 1]], [[-1] * 3], [[-1] * 3], [[-1] * 3]]
    credit = step_credit(ALL_FAIL, votes, algorithm=TRUST, trust=1.0)
    assert credit.advantages[0][0] == pytest.approx(CAP * (2 / 3) * (3 / 4) / 0.5)


def test_without_trust_steps_and_reasons_are_those_of_the_outcome_alone():
    outcomes, votes = [1, -1, None, -1], [[[1], [1]], [[-1], [1], [1]], [[1]], [[1]]]
    alone = step_credit(outcomes, votes, algorithm=OUTCOME)
    ours = step_credit(outcomes, votes, algorithm=TRUST, trust=0.0)
    assert (ours.advantages, ours.reasons) == (alone.advantages, alone.reasons)
    assert ours.rewards == step_credit(outcomes, votes, algorithm=CONSTANT).rewards


def test_an_unjudged_step_is_no_zero_vote():
    credit = step_credit([1, -1, 1], [[[1]], [[-1]], [[]]], algorithm=TRUST, trust=1.0)
    assert (credit.rewards[2][0], credit.reasons[2][0]) == (None, "not judged")
    assert credit.advantages[0][0] == pytest.approx(1 + CAP)


def test_whole_trajectories_can_be_weighed_the_same_way():
    grouped = resolve("rlanything", {"vote_weight": "trust", "estimator": "group"})
    credit = step_credit([1, -1], [[[1], [1]], [[-1], [1]]], algorithm=grouped, trust=0.2)
    # Mean votes 1 and 0: deviation 0.5.
    assert credit.advantages == (approx(1.2, 1.2), approx(-1.2, -1.2))
