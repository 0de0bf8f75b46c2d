"""`within`: votes move credit between the steps of a trajectory; what it is worth as a whole, they cannot change."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts import step_credit
from triforge.algorithms.algorithm import resolve

HALF = resolve("rlanything", {"estimator": "within", "lam": 0.5})
OUTCOME = resolve("rlanything", {"estimator": "group", "use_votes": False})


def approx(*values):
    return pytest.approx(values, abs=1e-12)


def test_the_numbers_are_those_computed_by_hand():
    # A = 1 and -1. Success: mean votes 1, 1, -1, their mean 1/3: 1 + 0.5 * (2/3, 2/3, -4/3).
    # Failure: 1/3 and -1, their mean -1/3: -1 + 0.5 * (2/3, -2/3).
    votes = [[[1], [1], [-1]], [[1, 1, -1], [-1, -1, -1]]]
    credit = step_credit([1, -1], votes, algorithm=HALF)
    assert credit.advantages[0] == approx(4 / 3, 4 / 3, 1 / 3)
    assert credit.advantages[1] == approx(-2 / 3, -4 / 3)


STEPS = st.lists(st.lists(st.sampled_from((-1, 0, 1)), min_size=1, max_size=3), max_size=6)


@given(
    st.lists(st.tuples(st.sampled_from((-1, 1)), STEPS), min_size=2, max_size=6),
    st.sampled_from((0.25, 0.5, 0.8, 3.0)),
)
def test_a_trajectory_is_worth_what_its_outcome_says_whatever_the_votes_say(rollouts, lam):
    outcomes, votes = [o for o, _ in rollouts], [v for _, v in rollouts]
    moved = resolve("rlanything", {"estimator": "within", "lam": lam})
    credit = step_credit(outcomes, votes, algorithm=moved)
    alone = step_credit(outcomes, votes, algorithm=OUTCOME)
    for row, plain, steps in zip(credit.advantages, alone.advantages, votes, strict=True):
        whole = Fraction(plain[0]) if plain else Fraction()
        means = [Fraction(sum(step), len(step)) for step in steps]
        mean = sum(means, Fraction()) / max(len(means), 1)
        exact = [whole + Fraction(lam) * (vote - mean) for vote in means]
        assert sum(exact) == whole * len(steps)
        assert row == approx(*map(float, exact))


@pytest.mark.parametrize("outcome", [1, -1])
def test_where_all_rollouts_end_alike_steps_still_differ_within_each(outcome):
    votes = [[[1], [-1]], [[-1], [-1]], [[1], [1]]]
    credit = step_credit([outcome] * 3, votes, algorithm=HALF)
    assert credit.advantages == ((0.5, -0.5), (0.0, 0.0), (0.0, 0.0))
    assert credit.reasons == ((None, None), *[("zero spread", "zero spread")] * 2)


def test_votes_that_agree_leave_the_outcome_as_it_is():
    votes = [[[1], [1]], [[-1], [-1]]]
    found = step_credit([1, -1], votes, algorithm=HALF)
    assert found.advantages == step_credit([1, -1], votes, algorithm=OUTCOME).advantages


def test_unjudged_steps_are_not_trained_on_and_unparsable_votes_count_nothing():
    votes = [[[1], [], [0]], [[-1]], [[]], [[1]]]
    credit = step_credit([1, -1, -1, None], votes, algorithm=HALF)
    # Judged: a success (A = 1) with mean votes 1 and 0, and a failure; their mean is 1/2.
    assert credit.advantages[0] == approx(1.25, 0, 0.75)
    assert credit.reasons[0] == (None, "not judged", None)
    assert credit.advantages[1] == approx(-1)
    assert (credit.reasons[2], credit.reasons[3]) == (("not judged",), ("no outcome",))


@pytest.mark.parametrize(("trusted", "lam"), [(0.1, 0.2), (0.9, 1 / 3), (0.0, 1e-300)])
def test_with_trust_the_votes_move_as_much_as_they_are_trusted(trusted, lam):
    # 2 * .1; no more than a share of 1/4; nothing.
    votes = [[[1], [1], [-1]], [[1, 1, -1], [-1, -1, -1]]]
    given = {"estimator": "within", "lam": 2.0, "vote_weight": "trust", "vote_share": 0.25}
    found = step_credit([1, -1], votes, algorithm=resolve("rlanything", given), trust=trusted)
    plain = resolve("rlanything", {"estimator": "within", "lam": lam})
    for row, expected in zip(
        found.advantages, step_credit([1, -1], votes, algorithm=plain).advantages, strict=True
    ):
        assert row == approx(*expected)
