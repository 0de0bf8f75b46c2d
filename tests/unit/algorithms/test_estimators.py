"""Estimators that read states and returns: published numbers, reasons, and what they must not depend on."""

import math

import pytest

from tests.rollouts import step_credit
from tests.unit.algorithms.parts import estimate
from triforge.algorithms.advantages import whitened
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.estimators import Group
from triforge.algorithms.estimators.gigpo import discounted_returns


def gigpo_advantages(rewards, states, *, algorithm):
    return estimate(Group(rewards=rewards, observations=states), algorithm)


def fused_advantages(outcomes, votes, *, algorithm):
    return estimate(Group(rewards=votes, outcomes=outcomes, votes=votes), algorithm)


MEAN = resolve("gigpo", {"normalise": "mean"})
REWARDS = [[0, 0, 1], [0, 0, 0]]
STATES = [["s0", "s1", "s2"], ["s0", "s1", "s1"]]


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_gigpo_adds_its_published_parts(weight):
    assert discounted_returns(REWARDS[0], 0.95) == pytest.approx([0.9025, 0.95, 1.0])
    weighted = resolve("gigpo", {"normalise": "mean", "state_weight": weight})
    scored = gigpo_advantages(REWARDS, STATES, algorithm=weighted)
    within = ([0.45125, 0.633333, 0.0], [-0.45125, -0.316667, -0.316667])
    for row, parts, across in zip(scored.advantages, within, (0.5, -0.5), strict=True):
        assert row == pytest.approx([across + weight * part for part in parts], abs=2e-6)
    assert {why for row in scored.reasons for why in row} == {None}


def test_gigpo_from_outcomes_is_gigpo_from_rewards_that_stand_on_the_last_step():
    credit = step_credit([1, -1], [[[]] * 3] * 2, algorithm=MEAN, state=STATES)
    assert credit.rewards == ((0.0, 0.0, 1.0), (0.0, 0.0, 0.0))
    assert credit.advantages[0] == pytest.approx([0.95125, 1.133333, 0.5], abs=1e-6)


def test_an_outcome_is_not_lost_where_the_last_step_was_not_judged():
    preset = resolve("gigpo", {"use_votes": True})
    votes = [[[1], [1], []]] * 2
    credit = step_credit([1, -1], votes, algorithm=preset, state=STATES)
    assert credit.rewards == ((1.0, 2.0, None), (1.0, 1.0, None))
    assert credit.advantages[0][1] > 0.0 > credit.advantages[1][1]
    nothing = step_credit([1, -1], [[[], [], []]] * 2, algorithm=preset, state=STATES)
    assert nothing.rewards == ((None,) * 3,) * 2


def test_where_rewards_are_summed_up_successes_of_any_length_do_not_differ():
    votes: list[list[list[int]]] = [[[]], [[]] * 3]
    given = {"algorithm": resolve("gigpo"), "state": [["a"], ["a", "b", "c"]]}
    assert step_credit([1, 1], votes, **given).spread == 0.0
    assert step_credit([1, -1], votes, **given).spread == 0.5


def test_gigpo_divides_both_parts_by_their_deviation_by_default():
    scored = gigpo_advantages(REWARDS, STATES, algorithm=resolve("gigpo"))
    assert scored.advantages[0] == pytest.approx([2.0, 1.0 + math.sqrt(2), 1.0], abs=1e-4)


def test_a_failed_rollout_that_stands_in_a_better_state_has_an_advantage_although_no_outcome_differs():
    preset = resolve("gigpo", {"step_cost": 0.1})
    given = {"state": [["a"], ["a", "b"]], "penalty": [[-0.1], [-0.1, -0.1]]}
    credit = step_credit([-1, -1], [[[]], [[], []]], algorithm=preset, **given)
    assert credit.advantages[0][0] > 0 > credit.advantages[1][0]


def test_unmeasured_rollouts_take_no_part_in_any_comparison():
    scored = gigpo_advantages([*REWARDS, [None, None]], [*STATES, ["s0", "s1"]], algorithm=MEAN)
    assert scored.advantages[:2] == gigpo_advantages(REWARDS, STATES, algorithm=MEAN).advantages
    assert scored.reasons[2] == ("unmeasured", "unmeasured")


def test_a_group_in_which_nothing_differs_says_why():
    scored = gigpo_advantages([[1], [1]], [["a"], ["a"]], algorithm=MEAN)
    assert scored.reasons == (("zero spread",), ("zero spread",))
    alone = gigpo_advantages([[1, 1]], [["a", "b"]], algorithm=MEAN)
    assert alone.reasons == (("lone step", "lone step"),)


AT_GRPO = resolve("at_grpo")


def test_candidates_of_one_state_give_the_published_numbers():
    given = {"state": [["s"]] * 4, "reward": [[1.8], [0.9], [0.9], [0.0]]}
    credit = step_credit([1, 1, 1, 1], [[[]]] * 4, algorithm=AT_GRPO, **given)
    assert [r[0] for r in credit.rewards] == [1.8, 0.9, 0.9, 0.0]  # the shared outcome adds nothing
    assert [a[0] for a in credit.advantages] == pytest.approx([1.414211, 0, 0, -1.414211], abs=1e-6)
    sample = resolve("at_grpo", {"std_ddof": 1})
    credit = step_credit([1, 1, 1, 1], [[[]]] * 4, algorithm=sample, **given)
    assert credit.advantages[0][0] == pytest.approx(1.224743, abs=1e-6)


def test_only_candidates_of_one_state_are_compared():
    states = [["0/a/", "1/b/x"], ["0/a/", "1/b/x"], ["0/a/", "1/b/y"]]
    rewards = [[1.0, 3.0], [1.0, 1.0], [1.0, 9.0]]
    votes: list[list[list[int]]] = [[[], []]] * 3
    credit = step_credit([-1] * 3, votes, algorithm=AT_GRPO, state=states, reward=rewards)
    assert [row[0] for row in credit.reasons] == ["zero spread"] * 3  # skipped
    assert [row[1] for row in credit.advantages] == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)
    assert credit.reasons[2][1] == "lone step"


def test_what_no_candidate_was_compared_by_is_unmeasured():
    credit = step_credit([1, 1], [[[]]] * 2, algorithm=AT_GRPO, state=[["s"]] * 2)
    assert credit.reasons == (("not judged",),) * 2


def test_step_values_are_standardised_over_all_steps_of_the_task():
    rewards = [[0.04, -0.01], [-0.025, 0.005]]
    preset = resolve("rlanything", {"estimator": "fused", "std_floor": 0.0, "std_eps": 1e-9})
    zero = fused_advantages([[1, 1], [1, 1]], rewards, algorithm=preset)
    assert zero.advantages[0] == pytest.approx([1.5554, -0.5185], abs=1e-4)
    assert zero.advantages[1] == pytest.approx([-1.1406, 0.1037], abs=1e-4)
    both = fused_advantages([[1, 1], [-1, -1]], rewards, algorithm=preset)
    assert both.advantages[0] == pytest.approx([2.5554, 0.4815], abs=1e-4)
    assert both.advantages[1] == pytest.approx([-2.1406, -0.8963], abs=1e-4)


def test_a_step_that_was_not_judged_has_no_fused_advantage():
    preset = resolve("rlanything", {"estimator": "fused"})
    credit = step_credit([1, -1], [[[1], []], [[-1]]], algorithm=preset)
    assert credit.reasons == ((None, "not judged"), (None,))


@pytest.mark.parametrize(("ddof", "expected"), [(0, 1.414214), (1, 1.224745)])
def test_a_baseline_and_whitening_give_the_published_numbers(ddof, expected):
    found = whitened([0.5, -0.5, 0.0, 0.0], [1, 1, 1, 1], ddof=ddof)
    assert found == pytest.approx([expected, -expected, 0.0, 0.0], abs=1e-6)


def test_whitening_counts_tokens_and_not_responses():
    found = whitened([1.0, 0.0], [1, 3])
    assert found[0] * 1 + found[1] * 3 == pytest.approx(0.0)
    assert (found[0] ** 2 + 3 * found[1] ** 2) / 4 == pytest.approx(1.0)
    assert whitened([2.0, 2.0], [1, 5]) == [0.0, 0.0]
    assert whitened([], []) == []
    assert whitened([3.0], [1], ddof=1) == [0.0]
