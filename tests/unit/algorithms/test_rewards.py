"""Rewards against the published vectors."""

import pytest

from triforge.algorithms.advantages import mean_and_deviation
from triforge.algorithms.credit import step_reward, vote_rewards
from triforge.errors import InputError

OUTCOMES = [1, -1, -1]
VOTES = [
    [[1, 1, 1], [1, 1, -1]],
    [[1, -1, -1], [-1, -1, -1], [1, 1, -1]],
    [[-1, -1, -1], [-1, -1, -1]],
]


def test_the_integrated_reward_matches_the_published_vector():
    rewards = [
        [step_reward(o, step) for step in steps] for o, steps in zip(OUTCOMES, VOTES, strict=True)
    ]
    assert rewards[0] == pytest.approx([2, 1.3333], abs=1e-4)
    assert rewards[1] == pytest.approx([-1.3333, -2, -0.6667], abs=1e-4)
    assert rewards[2] == [-2, -2]


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
