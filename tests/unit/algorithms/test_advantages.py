"""Advantages: published vectors, reasons, and laws that hold for any input."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.parts import estimate
from triforge.algorithms.advantages import standardise
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.credit import step_reward, vote_advantages, vote_rewards

PAPER, DEFAULT, GRPO = (resolve(name) for name in ("rlanything_paper", "rlanything", "grpo"))

# Multiples of 1/4 keep shifts and scales exact enough to compare.
quarters = st.integers(-8, 8).map(lambda n: n / 4)
ragged = st.lists(st.lists(st.none() | quarters, max_size=4), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("outcome", "votes", "expected"),
    [
        (1, [1, 1, -1], [0.707, 0.707, -1.414]),
        (-1, [1, 1, -1], [-0.707, -0.707, 1.414]),
        (1, [1, -1, 0], [1.336, -0.267, -1.069]),
        (-1, [1, 1, 0], [0.707, 0.707, -1.414]),
    ],
)
def test_vote_advantages_match_the_published_vectors(outcome, votes, expected):
    rewards = vote_rewards(step_reward(outcome, votes), votes)
    scored = vote_advantages([votes], [rewards], algorithm=PAPER)
    assert scored.advantages[0] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("outcome", "votes", "reason"),
    [
        (-1, [1, 1, 1], "unanimous votes"),
        (1, [-1, -1, -1], "unanimous votes"),
        (1, [0, 0, 0], "zero spread"),
        (1, [1], "lone vote"),
    ],
)
def test_published_rules_skip_steps_whose_votes_do_not_differ(outcome, votes, reason):
    rewards = vote_rewards(step_reward(outcome, votes), votes)
    scored = vote_advantages([votes], [rewards], algorithm=PAPER)
    assert scored.advantages == ((0.0,) * len(votes),)
    assert scored.reasons == ((reason,) * len(votes),)


@pytest.mark.parametrize(
    ("rewards", "how", "ddof", "expected"),
    [
        ([1, 0, 0, 1], "std", 0, [0.999998, -0.999998, -0.999998, 0.999998]),
        ([1, 0, 0, 1], "std", 1, [0.866024, -0.866024, -0.866024, 0.866024]),
        ([1, 0, 0, 1], "mean", 0, [0.5, -0.5, -0.5, 0.5]),
        ([1, 0, 0, 1], "others", 0, [0.666667, -0.666667, -0.666667, 0.666667]),
        ([1, 0, 0, 1], "relative", 0, [0.999998, -0.999998, -0.999998, 0.999998]),
        ([1, 0.5, 0, 0], "std", 0, [1.507553, 0.301511, -0.904532, -0.904532]),
        ([1, 0.5, 0, 0], "std", 1, [1.30558, 0.261116, -0.783348, -0.783348]),
        ([1, 0.5, 0, 0], "mean", 0, [0.625, 0.125, -0.375, -0.375]),
        ([1, 0.5, 0, 0], "others", 0, [0.833333, 0.166667, -0.5, -0.5]),
        ([1, 0.5, 0, 0], "relative", 0, [1.666662, 0.333332, -0.999997, -0.999997]),
        ([1, 1, 1, -1], "std", 0, [0.577350, 0.577350, 0.577350, -1.732049]),
        ([1, 1, 1, -1], "std", 1, [0.5, 0.5, 0.5, -1.499999]),
        ([1.8, 0.9, 0.9, 0], "std", 0, [1.414211, 0, 0, -1.414211]),
        ([1.8, 0.9, 0.9, 0], "std", 1, [1.224743, 0, 0, -1.224743]),
    ],
)
def test_group_goldens_of_every_normalisation(rewards, how, ddof, expected):
    scored = standardise(rewards, normalise=how, ddof=ddof, eps=1e-6)
    assert scored.advantages == pytest.approx(expected, abs=2e-6)


def test_raw_rewards_are_left_as_they_are():
    assert standardise([1.0, None, 0.0], normalise="raw").advantages == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("lam", [1.0, 0.01])
def test_without_a_floor_the_size_of_a_shaping_term_cancels(lam):
    rewards = [-1 + lam * s for s in (0, 0.1, -0.2, 0.3)]
    assert standardise(rewards).advantages == pytest.approx(
        [-0.277, 0.277, -1.387, 1.387], abs=1e-3
    )
    sample = standardise(rewards, ddof=1).advantages
    assert sample == pytest.approx([-0.240, 0.240, -1.201, 1.201], abs=1e-3)


def test_the_floor_golden():
    rewards = [-1 + 0.01 * x for x in (0, 0.1, -0.2, 0.3)]
    floored = standardise(rewards, std_floor=0.1).advantages
    assert floored == pytest.approx([-0.005, 0.005, -0.025, 0.025], abs=1e-9)
    assert max(standardise(rewards).advantages) == pytest.approx(1.387, abs=1e-3)


def test_a_trajectory_has_one_group_advantage_on_all_its_steps():
    scored = estimate([[1, 1], [-1], [-1, None, -1], []], GRPO)
    root = math.sqrt(2) - 2e-6  # less what std_eps takes
    assert scored.advantages[0] == pytest.approx([root, root], abs=1e-6)
    assert scored.advantages[1] == pytest.approx([-root / 2], abs=1e-6)
    assert scored.advantages[2] == pytest.approx([-root / 2, 0.0, -root / 2], abs=1e-6)
    assert scored.reasons[2] == (None, "unmeasured", None)
    assert scored.advantages[3] == ()


def test_a_group_of_one_says_nothing():
    assert estimate([[1, 1]], GRPO).reasons == (("lone step", "lone step"),)


def test_unmeasured_entries_take_no_part():
    scored = standardise([1, None, -1])
    assert scored.advantages == (1.0, 0.0, -1.0)
    assert scored.reasons == (None, "unmeasured", None)
    assert standardise([None, None]).reasons == ("unmeasured", "unmeasured")
    assert standardise([]).advantages == ()


def test_a_raw_lone_reward_of_zero_is_not_trained_on():
    assert standardise([0.0], lone="raw").reasons == ("zero advantage",)


def test_unanimous_steps_can_be_left_out_of_the_task_scope():
    preset = resolve("rlanything", {"drop_unanimous": True})
    votes = [[1, 1], [1, -1], [-1, 1]]
    scored = vote_advantages(votes, [[2.0, 2.0], [1.0, -1.0], [-1.0, 1.0]], algorithm=preset)
    assert scored.advantages == ((0.0, 0.0), (1.0, -1.0), (-1.0, 1.0))
    assert scored.reasons[0] == ("unanimous votes", "unanimous votes")


def test_votes_without_a_measured_outcome_take_no_part():
    votes = [[1, 0], [1, -1]]
    scored = vote_advantages(votes, [[None, None], [1.0, -1.0]], algorithm=DEFAULT)
    assert scored.reasons == (("unmeasured", "unmeasured"), (None, None))
    assert scored.advantages[1] == (1.0, -1.0)


# ---- laws ----


@given(ragged, st.sampled_from([PAPER, DEFAULT]), st.randoms(use_true_random=False))
def test_the_order_of_trajectories_does_not_matter(rewards, preset, random):
    order = list(range(len(rewards)))
    random.shuffle(order)
    for name in ("step_index", "group"):
        scored = estimate(rewards, preset, name)
        shuffled = estimate([rewards[t] for t in order], preset, name)
        assert shuffled.advantages == tuple(scored.advantages[t] for t in order)
        assert shuffled.reasons == tuple(scored.reasons[t] for t in order)


@given(ragged)
def test_an_entry_is_trained_on_exactly_when_it_has_no_reason(rewards):
    for name in ("step_index", "group"):
        scored = estimate(rewards, DEFAULT, name)
        pairs = zip(_flat(scored.advantages), _flat(scored.reasons), strict=True)
        assert all((reason is None) == (abs(a) > 1e-8) for a, reason in pairs)


vote = st.sampled_from([-1, 0, 1])
judged = st.lists(
    st.tuples(st.sampled_from([-1, 1]), st.lists(vote, min_size=1, max_size=4)),
    min_size=1,
    max_size=6,
)


@given(judged)
def test_an_unparsable_vote_lies_below_every_valid_one_and_wrong_votes_are_never_reinforced(steps):
    votes = [step for _, step in steps]
    rewards = [vote_rewards(step_reward(outcome, step), step) for outcome, step in steps]
    advantages = vote_advantages(votes, rewards, algorithm=DEFAULT).advantages
    valid, invalid = [], []
    for (outcome, step), row in zip(steps, advantages, strict=True):
        for s, a in zip(step, row, strict=True):
            (valid if s else invalid).append(a)
            assert s != -outcome or a <= 0.0
    assert all(a <= min([0.0, *valid]) - 1.0 for a in invalid)


@given(judged)
def test_taking_the_unparsable_votes_out_of_a_task_changes_no_valid_advantage(steps):
    votes = [step for _, step in steps]
    rewards = [vote_rewards(step_reward(outcome, step), step) for outcome, step in steps]
    kept = [[s for s in step if s] for step in votes]
    kept_rewards = [
        [r for s, r in zip(step, row, strict=True) if s]
        for step, row in zip(votes, rewards, strict=True)
    ]
    full = vote_advantages(votes, rewards, algorithm=DEFAULT).advantages
    bare = vote_advantages(kept, kept_rewards, algorithm=DEFAULT).advantages
    assert [
        a
        for step, row in zip(votes, full, strict=True)
        for s, a in zip(step, row, strict=True)
        if s
    ] == _flat(bare)


def _flat(rows):
    return [value for row in rows for value in row]
