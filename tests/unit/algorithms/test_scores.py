"""Scores in place of won and lost: exact advantages, and what a binary outcome keeps."""

import math

import pytest

from tests.rollouts import step_credit
from triforge.algorithms.advantages import NEGATIVE, ZERO_SPREAD
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.credit import NO_OUTCOME
from triforge.algorithms.filters import ONE_SIDED
from triforge.algorithms.presets import preset_names
from triforge.algorithms.theory import mean_interval

SCORES = (0.2, 0.7, 0.7, 1.0)
UNJUDGED = [[()]] * 4


def advantages(preset, scores, outcomes=(None,) * 4, votes=UNJUDGED, **options):
    algorithm = resolve(preset, options)
    return step_credit(outcomes, votes, algorithm=algorithm, scores=scores)


SIGNED = [-0.6, 0.4, 0.4, 1.0]


@pytest.mark.parametrize(
    ("preset", "options", "rewards", "expected"),
    [
        ("grpo", {"std_eps": 0.0}, SIGNED, [-1.5666989, 0.1740777, 0.1740777, 1.2185436]),
        ("rloo", {}, SCORES, [-0.6, 1 / 15, 1 / 15, 7 / 15]),
        ("dr_grpo", {}, SCORES, [-0.45, 0.05, 0.05, 0.35]),
        ("maxrl", {"std_eps": 0.0}, SCORES, [-0.6923077, 0.0769231, 0.0769231, 0.5384615]),
    ],
)
def test_scores_have_the_published_advantages(preset, options, rewards, expected):
    found = advantages(preset, SCORES, **options)
    assert [a for (a,) in found.advantages] == pytest.approx(expected, abs=1e-7)
    assert [r for (r,) in found.rewards] == pytest.approx(rewards)
    assert (found.successes, found.measured) == (0, 4)


@pytest.mark.parametrize("preset", preset_names())
def test_scores_of_1_and_0_are_what_won_and_lost_are(preset):
    outcomes, votes = [1, -1, None, -1], [[(1, 1)], [(-1, 1)], [(1, 0)], [()]]
    algorithm, scores = resolve(preset), [1.0, 0.0, None, 0.0]
    without = step_credit(outcomes, votes, algorithm=algorithm)
    assert step_credit(outcomes, votes, algorithm=algorithm, scores=scores) == without


def test_a_group_is_dead_when_its_scores_are_alike_and_not_when_all_fail():
    alike = advantages("grpo", (0.3,) * 4, (-1,) * 4)
    assert set(alike.reasons) == {(ZERO_SPREAD,)}
    differ = advantages("grpo", (0.3, 0.3, 0.3, 0.4), (-1,) * 4, mixed_groups_only=True)
    assert set(differ.reasons) == {(None,)}
    same = advantages("grpo", (0.3,) * 4, (-1,) * 4, mixed_groups_only=True)
    assert set(same.reasons) == {(ONE_SIDED,)}


def test_a_group_with_a_score_below_0_is_not_trained_on_where_the_mean_divides():
    scored = advantages("maxrl", (-3.0, 0.2, 0.7, 1.0))
    assert set(scored.reasons) == {(NEGATIVE,)}
    assert set(scored.advantages) == {(0.0,)}


def test_what_was_not_measured_has_no_score():
    found = advantages("rloo", (0.5, None, 1.0, None))
    assert found.reasons == ((None,), (NO_OUTCOME,), (None,), (NO_OUTCOME,))
    assert [a for (a,) in found.advantages] == [-0.5, 0.0, 0.5, 0.0]


def test_the_rewards_of_steps_stand_on_their_steps_where_returns_are_summed_up():
    given = {"state": [["a", "b"]] * 2, "reward": [[0.25, 0.5], [0.5, None]], "scores": [0.75, 2.0]}
    votes: list[list[tuple[int, ...]]] = [[(), ()]] * 2
    found = step_credit([None] * 2, votes, algorithm=resolve("gigpo"), **given)
    assert found.rewards == ((0.25, 0.5), (0.5, 1.5))  # 1.5 is what the score is beyond the sum
    whole = step_credit([None] * 2, votes, algorithm=resolve("grpo"), **given)
    assert whole.rewards == ((0.5, 0.5), (3.0, 3.0))


def test_a_mean_has_the_interval_of_students_t():
    half = 2.776445 * math.sqrt(0.38 / 4 / 5)
    found = mean_interval([0.2, 0.7, 0.7, 1.0, 0.4])
    assert found == pytest.approx((0.6 - half, 0.6 + half), rel=1e-2)
