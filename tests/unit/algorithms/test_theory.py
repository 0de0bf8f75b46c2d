"""Measures of the votes, by hand and against the published numbers."""

import math
import random

import numpy as np
import pytest

from tests.unit.algorithms.parts import OUTCOMES, VOTES
from triforge.algorithms.theory import (
    GroupVotes,
    count_votes,
    estimate,
    share_interval,
    trust,
    wilson,
)
from triforge.errors import InputError

RIGHT, WRONG, CHANCE = [[1]], [[-1]], [[1, -1]]


def group(*trajectories: tuple[int, list[list[int]]]) -> GroupVotes:
    return count_votes([o for o, _ in trajectories], [v for _, v in trajectories])


def test_the_counts_of_the_published_vector_come_out_by_hand():
    g = count_votes(OUTCOMES, VOTES)
    assert (g.successes, g.failures) == (1, 2)
    # Mean votes of the trajectories: 2/3, -1/3 and -1.
    assert (g.plus, g.minus) == (pytest.approx(5 / 6), pytest.approx(2 / 3 + 1))
    # k (k - 1) / 6 for the k votes of three that lie on the outcome's side, mean over steps.
    assert g.plus_square == pytest.approx((1 + 1 / 3) / 2)
    assert g.minus_square == pytest.approx((1 / 3 + 1 + 0) / 3 + 1)
    assert (g.pairs, g.wins) == (4, 4)
    found = estimate([g])
    assert found.mu.value == found.mu_within.value == pytest.approx(5 / 6 + 5 / 6)
    assert found.f_plus.value == pytest.approx(math.sqrt(2 / 3 / 3))
    assert found.f_ratio.value == pytest.approx(math.sqrt((2 / 3) / (13 / 9)))
    assert (found.precision.value, found.one_sided, found.groups) == (1.0, 0.0, 1)


def test_a_long_trajectory_counts_no_more_than_a_short_one():
    short, long = (1, [[1]]), (1, [[-1]] * 9)
    assert estimate([group(short, long)]).p_plus.value == 0.5


def test_an_unparsable_vote_counts_half_for_either_side_and_nothing_for_f():
    g = group((1, [[0, 0]]), (-1, [[0, 0]]))
    assert (g.plus, g.minus, g.plus_square, g.minus_square) == (0.5, 0.5, 0.0, 0.0)
    assert estimate([g]).mu.value == 1.0


def test_what_was_not_judged_or_not_measured_takes_no_part():
    with_gaps = count_votes([1, None, -1, -1], [[[1], []], [[1]], [[]], [[-1]]])
    assert with_gaps == count_votes([1, -1], [[[1]], [[-1]]])
    empty = estimate([count_votes([None], [[[1]]])])
    assert (empty.groups, empty.mu, empty.one_sided) == (0, None, None)
    with pytest.raises(InputError, match="given 1 trajectories, expected 2"):
        count_votes([1, -1], [[[1]]])


def test_a_square_of_few_votes_is_not_biased():
    # Over all outcomes of two votes with p = 0.3, the mean of the estimate is p squared.
    def square(votes: list[int]) -> float:
        return group((1, [votes])).plus_square

    p, q = 0.3, 0.7
    mean = p * p * square([1, 1]) + 2 * p * q * square([1, -1]) + q * q * square([-1, -1])
    assert mean == pytest.approx(p * p)
    assert square([1]) == 1.0  # one vote cannot tell: the larger one


def test_f_weights_follow_remark_one():
    g = count_votes([1], [[[1, -1, 1]]], lam=0.5)  # p = 2/3, p squared = 1/3
    assert g.plus_square == pytest.approx(0.25**2 + 2 * 0.25 * 0.5 * 2 / 3 + 0.25 / 3)


def test_the_interval_is_the_jackknife_over_groups():
    # Shares of +1 by group: 1, 0, 1, 0. Standard error of their mean: sqrt((1/3) / 4); t has 3 degrees of freedom.
    groups = [group((1, RIGHT)), group((1, WRONG))] * 2
    found = estimate(groups).p_plus
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    many = estimate(groups * 16).p_plus  # 64 groups, t at 63 degrees: 1.9983
    half = 1.99834 * math.sqrt(0.25 / 63)
    assert (many.low, many.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)


def test_more_rollouts_of_the_same_tasks_do_not_feign_certainty():
    few = estimate([group((1, RIGHT)), group((1, WRONG))] * 4).p_plus
    many = estimate([group(*[(1, RIGHT)] * 50), group(*[(1, WRONG)] * 50)] * 4).p_plus
    assert many.low == pytest.approx(few.low)


def test_few_groups_say_nothing():
    three = [group((1, RIGHT), (-1, WRONG))] * 3
    found = estimate(three).mu_within
    assert (found.value, found.low, found.high) == (2.0, 0.0, 2.0)
    assert (estimate([*three, *three]).mu_within.low, trust([*three, *three])) == (2.0, 1.0)
    assert trust(three) == trust([]) == 0.0


def test_one_outcome_in_all_groups_gives_one_side_and_no_trust():
    lost = [group((-1, WRONG), (-1, RIGHT))] * 10
    found = estimate(lost)
    assert (found.p_plus, found.mu, found.mu_within, found.f_ratio) == (None,) * 4
    assert (found.p_minus.value, found.one_sided, trust(lost)) == (0.5, 1.0, 0.0)


def test_a_judge_that_only_knows_which_tasks_are_hard_gets_no_trust():
    # Nine in ten rollouts of easy tasks win and all are praised; hard tasks the other way round.
    easy = group(*[(1, RIGHT)] * 9, (-1, RIGHT))
    hard = group(*[(-1, WRONG)] * 9, (1, WRONG))
    found = estimate([easy, hard] * 20)
    assert found.mu.value == pytest.approx(0.9 + 0.9)
    assert (found.mu_within.value, trust([easy, hard] * 20)) == (pytest.approx(1.0), 0.0)


def _drawn(p_plus: float, p_minus: float, seed: int, groups: int = 64) -> list[GroupVotes]:
    draw = random.Random(seed)

    def votes(outcome: int) -> list[list[int]]:
        praise = p_plus if outcome == 1 else 1 - p_minus
        return [[1 if draw.random() < praise else -1 for _ in range(3)] for _ in range(6)]

    outcomes = [1, -1, -1, 1, -1, -1, -1, -1]
    return [count_votes(outcomes, [votes(o) for o in outcomes]) for _ in range(groups)]


def test_trust_is_below_the_truth_for_good_votes_and_zero_at_chance_and_below():
    assert 0.2 < trust(_drawn(0.65, 0.65, 1)) < 0.3  # mu - 1 is 0.3
    assert trust(_drawn(0.5, 0.5, 2)) < 0.02
    assert trust(_drawn(0.9, 0.1, 3)) < 0.02  # praises everything
    assert trust(_drawn(0.3, 0.3, 4)) == 0.0  # inverted


def test_the_interval_of_mu_holds_the_truth_about_as_often_as_it_says():
    hits = 0
    for seed in range(60):
        found = estimate(_drawn(0.7, 0.6, seed, groups=16)).mu_within
        hits += found.low <= 1.3 <= found.high
    assert hits >= 53  # 57 expected; fixed seeds


# ---- intervals of shares ----


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
