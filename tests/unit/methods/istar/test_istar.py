"""iStar on chains whose end alone is rewarded, with tables of logits in the place of policy and reward model."""

from __future__ import annotations

from statistics import fmean

import pytest

from tests.unit.methods.istar.chain import curve

ENOUGH, UPDATES = 0.8, 40


def updates_to_the_threshold(seed: int, *, implicit: bool) -> int:
    """Updates, of 24 episodes each, until the last three succeeded often enough.

    Advantages of the two parts are about twice as large as those of outcomes alone, so its steps are half as large.
    """
    rate = 0.5 if implicit else 1.0
    success: list[float] = []
    for point in curve(seed, implicit=implicit, rate=rate, updates=UPDATES):
        success.append(point["success"])
        if fmean(success[-3:]) >= ENOUGH and len(success) > 2:
            return len(success)
    return UPDATES + 1


def test_step_rewards_of_outcomes_reach_a_threshold_with_fewer_samples_than_outcomes() -> None:
    needed = [
        [updates_to_the_threshold(seed, implicit=implicit) for seed in range(5)]
        for implicit in (True, False)
    ]
    assert fmean(needed[0]) < 0.85 * fmean(needed[1]), needed


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_reward_model_comes_to_order_pairs_that_it_has_not_learned_from(seed: int) -> None:
    right = [point["right"] for point in curve(seed, implicit=True) if "right" in point]
    assert right[0] == 0.5
    assert fmean(right[1:8]) > 0.6
