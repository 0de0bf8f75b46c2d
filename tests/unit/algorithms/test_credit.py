"""Rewards and credit of the responses and votes of one task's rollouts, against the published vectors."""

import pytest

from tests.rollouts import step_credit, vote_credit
from tests.unit.algorithms.parts import OUTCOMES, VOTES
from triforge.algorithms.advantages import mean_and_deviation
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.credit import accuracy, step_reward, vote_rewards
from triforge.errors import InputError

PAPER, DEFAULT, GRPO = (resolve(name) for name in ("rlanything_paper", "rlanything", "grpo"))


def test_the_published_vector_comes_out_whole():
    credit = step_credit(OUTCOMES, VOTES, algorithm=PAPER)
    assert credit.rewards[0] == pytest.approx((2, 1.3333), abs=1e-4)
    assert credit.rewards[1] == pytest.approx((-1.3333, -2, -0.6667), abs=1e-4)
    assert credit.rewards[2] == (-2, -2)
    assert credit.advantages[0] == pytest.approx((1.397, 1.4142), abs=1e-3)
    assert credit.advantages[1] == pytest.approx((-0.508, -0.7071, -0.6667), abs=1e-3)
    assert credit.advantages[2] == pytest.approx((-0.889, -0.7071), abs=1e-3)
    assert {why for row in credit.reasons for why in row} == {None}
    assert (credit.successes, credit.measured) == (1, 3)


def test_accuracy_counts_only_what_was_measured():
    assert accuracy([1, -1, None, 1]) == (2, 3)
    assert accuracy([None]) == (0, 0)
    assert accuracy([]) == (0, 0)
    with pytest.raises(InputError, match="outcomes: given 0"):
        accuracy([0])


def test_a_rollout_that_could_not_be_measured_takes_no_part_and_is_named():
    with_crash = step_credit([1, -1, None], [[[1]], [[-1]], [[1]]], algorithm=DEFAULT)
    without = step_credit([1, -1], [[[1]], [[-1]]], algorithm=DEFAULT)
    assert with_crash.advantages[:2] == without.advantages
    assert (with_crash.rewards[2], with_crash.reasons[2]) == ((None,), ("no outcome",))
    votes = vote_credit([1, -1, None], [[[1, 1]], [[-1, -1]], [[1, 0]]], algorithm=DEFAULT)
    assert votes.reasons[2] == (("no outcome", "no outcome"),)


def test_an_unjudged_step_is_not_a_zero():
    credit = step_credit([1, -1, 1], [[[1]], [[-1]], [[]]], algorithm=DEFAULT)
    assert (credit.rewards[2][0], credit.reasons[2][0]) == (None, "not judged")
    assert credit.advantages[0][0] == 1.0
    assert vote_credit([1, -1], [[[]], [[1, -1]]], algorithm=DEFAULT).advantages[0] == ((),)


def test_a_task_outside_the_policy_band_keeps_its_rewards_and_says_why_it_does_not_train():
    preset = resolve("rlanything", {"policy_band": [0.2, 0.8]})
    credit = step_credit([-1, -1], [[[1]], [[-1]]], algorithm=preset)
    assert credit.rewards == ((0.0,), (-2.0,))
    assert credit.advantages == ((0.0,), (0.0,))
    assert credit.reasons == (("outside policy band",), ("outside policy band",))


def test_a_task_outside_the_reward_band_does_not_train_the_judge():
    credit = vote_credit([-1, -1], [[[1, 0]], [[-1, 1]]], algorithm=DEFAULT)
    assert {why for t in credit.reasons for s in t for why in s} == {"outside reward band"}
    assert {a for t in credit.advantages for s in t for a in s} == {0.0}


def test_votes_only_train_the_judge_when_asked_to():
    preset = resolve("rlanything", {"train_reward_model": False})
    credit = vote_credit([1, -1], [[[1, -1]], [[-1, 1]]], algorithm=preset)
    assert {why for t in credit.reasons for s in t for why in s} == {"reward model not trained"}
    assert credit.rewards[0][0] == (1.0, -1.0)


def test_without_any_measured_rollout_nothing_trains():
    credit = step_credit([None, None], [[[1]], [[1]]], algorithm=DEFAULT)
    assert credit.reasons == (("no outcome",), ("no outcome",))
    assert credit.measured == 0


def test_policy_and_reward_model_have_a_weight_of_votes_each():
    preset = resolve("rlanything", {"lam": 0.5, "reward_lam": 0.25})
    assert step_credit([1, -1], [[[1]], [[1]]], algorithm=preset).rewards == ((1.5,), (-0.5,))
    assert vote_credit([1, -1], [[[1]], [[1]]], algorithm=preset).rewards == (
        ((1.25,),),
        ((-0.75,),),
    )


def test_a_light_weight_of_votes_in_the_policy_does_not_turn_a_unanimous_judge_to_the_outcome():
    votes = [[[-1, -1, -1]], [[1, -1, 1]], [[-1, 1, -1]]]
    light = vote_credit([1, -1, 1], votes, algorithm=resolve("rlanything", {"lam": 0.15}))
    assert light == vote_credit([1, -1, 1], votes, algorithm=DEFAULT)
    assert light.rewards[0][0] == (0.0, 0.0, 0.0)  # with 0.15 it would be -0.85: taught to say +1


def test_the_convention_of_the_deviation_reaches_all_three_estimators():
    sample = {"std_ddof": 1, "std_floor": 0.0}
    steps, group = resolve("rlanything", sample), resolve("grpo", sample)
    for preset in (steps, group):
        credit = step_credit([1, -1], [[[1]], [[-1]]], algorithm=preset)
        assert credit.advantages[0][0] == pytest.approx(0.5**0.5)
    votes = vote_credit([1, -1], [[[1]], [[1]]], algorithm=steps)
    assert votes.advantages[0][0][0] == pytest.approx(0.5**0.5)


def test_the_reward_of_an_unparsable_vote_is_a_option():
    preset = resolve("rlanything", {"invalid_vote_reward": -3.0, "invalid_vote_margin": 0.5})
    credit = vote_credit([1, -1], [[[1, 0]], [[-1]]], algorithm=preset)
    assert credit.rewards[0][0] == (1.5, -3.0)
    assert (
        credit.advantages[0][0][1]
        == min(0.0, credit.advantages[1][0][0], credit.advantages[0][0][0]) - 0.5
    )


def test_an_unparsable_vote_counts_nothing_but_stays_in_the_denominator():
    assert step_reward(1, [1, 0, 0, 0]) == 1.25
    assert step_reward(-1, [0, 0]) == -1.0


def test_lambda_scales_the_votes_and_both_parts_can_be_left_out():
    assert step_reward(1, [1, 1], lam=0.25) == 1.25
    assert step_reward(1, [-1, -1], use_outcome=False) == -1.0
    assert step_reward(-1, [], use_votes=False) == -1.0


def test_an_unjudged_step_has_no_integrated_reward():
    with pytest.raises(InputError, match="expected at least one"):
        step_reward(1, [])


@pytest.mark.parametrize(
    ("outcome", "votes", "expected"),
    [
        (1, [1, 1, -1], [1.333, 1.333, -1.333]),
        (-1, [1, 1, -1], [-0.667, -0.667, 0.667]),
        (1, [1, -1, 0], [1, -1, -2]),
        (-1, [1, 1, 0], [-0.333, -0.333, -2]),
        (1, [-1, -1, -1], [0, 0, 0]),
        (1, [0, 0, 0], [-2, -2, -2]),
    ],
)
def test_vote_rewards_match_the_published_vectors(outcome, votes, expected):
    rewards = vote_rewards(step_reward(outcome, votes), votes)
    assert rewards == pytest.approx(expected, abs=1e-3)


def test_mean_and_deviation_in_both_conventions():
    assert mean_and_deviation([1, 0, 0, 1]) == (0.5, 0.5)
    assert mean_and_deviation([1, 0, 0, 1], ddof=1) == pytest.approx((0.5, (1 / 3) ** 0.5))
    assert mean_and_deviation([3.0], ddof=1) == (3.0, 0.0)
