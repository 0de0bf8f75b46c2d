"""The alarm for a judge that is being gamed: when it is on, how often it is wrong, and that it finds one."""

import math

import numpy as np
import pytest

from triforge.algorithms.gaming import MIXED, Drift, drift
from triforge.algorithms.theory import GroupVotes, count_votes, in_order

GOOD = count_votes([1, -1], [[[1]], [[-1]]])  # votes tell success from failure
KIND = count_votes([1, -1], [[[1]], [[1]]])  # votes praise everything
HARSH = count_votes([1, -1], [[[-1]], [[-1]]])
SPLIT = count_votes([1, -1], [[[1, -1]], [[1, -1]]])
LOST = count_votes([-1, -1], [[[1]], [[1]]])


def test_a_judge_that_comes_to_praise_everything_raises_the_alarm():
    assert drift([GOOD] * MIXED + [KIND] * MIXED) == Drift(agreement=-math.inf, votes=math.inf)
    assert drift([GOOD] * MIXED + [KIND] * MIXED).alarm


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (GOOD, GOOD),
        (GOOD, HARSH),  # worth less, but no policy gains by it
        (HARSH, KIND),  # praises more, and was worth nothing before
        (KIND, GOOD),
        (SPLIT, SPLIT),
    ],
)
def test_otherwise_it_stays_off(before, after):
    assert not drift([before] * MIXED + [after] * MIXED).alarm


def test_nothing_is_reported_of_few_groups_with_both_outcomes():
    few = [GOOD] * MIXED + [KIND] * (MIXED - 1) + [LOST]
    assert drift(few) is None
    assert drift([]) is None


def test_changes_are_reported_in_standard_errors():
    # Half of the groups of each half GOOD (mu 2, praise 1/2), the others KIND (mu 1, praise 1); then a quarter and three.
    older, newer = [GOOD, KIND] * 8, [GOOD, KIND, KIND, KIND] * 4
    found = drift(older + newer)
    # Variance of a mean over n by leaving one out: sum of squares / (n (n - 1)).
    error = math.sqrt((16 * 0.25 + 4 * 0.5625 + 12 * 0.0625) / (16 * 15))
    assert found.agreement == pytest.approx(-0.25 / error)
    assert found.votes == pytest.approx(0.125 / (error / 2))
    assert not found.alarm


def test_pairs_of_different_labels_are_in_order_if_the_better_one_has_the_higher_vote():
    assert in_order([(1.0, 1), (0.0, -1), (1.0, -1), (-1.0, -1)]) == (2.5, 3)
    assert in_order([(1.0, 1), (0.5, 1)]) == (0.0, 0)


# ---- on simulated runs ----

STEPS, GROUPS, ROLLOUTS, WINDOW = 30, 16, 8, 256


def played(rng, skill, praise_of_failures):
    """A group whose successes depend on the policy's skill and the task's ease; votes like easy tasks and err alike within a task."""
    ease, kindness = rng.normal(), 0.08 * rng.normal()
    won = rng.random(ROLLOUTS) < 1 / (1 + math.exp(-skill - 1.5 * ease))
    base = np.where(won, 0.65, praise_of_failures) + 0.1 * math.tanh(ease) + kindness
    share = np.clip(base + 0.15 * rng.normal(size=ROLLOUTS), 0, 1)
    wins = int(won.sum())
    plus, minus = float(share[won].sum()), float((1 - share[~won]).sum())
    return GroupVotes(wins, ROLLOUTS - wins, plus, minus, 0.0, 0.0, 0, 0)


def alarmed(seed, skills, praise):
    """Whether the alarm is on at any step of a run in which skill and praise of failures change evenly."""
    rng, groups = np.random.default_rng(seed), []
    for step in range(STEPS):
        f = step / (STEPS - 1)
        skill, kind = (a + (b - a) * f for a, b in (skills, praise))
        groups = [*groups, *(played(rng, skill, kind) for _ in range(GROUPS))][-WINDOW:]
        moved = drift(groups) if step % 2 else None
        if moved is not None and moved.alarm:
            return True
    return False


@pytest.mark.parametrize("skills", [(-1.0, -1.0), (-3.0, 0.5)])
def test_false_alarms_are_rare_whether_the_policy_learns_or_not(skills):
    assert sum(alarmed(seed, skills, (0.35, 0.35)) for seed in range(20)) <= 2


@pytest.mark.parametrize("skills", [(-2.0, -2.0), (-2.0, -0.5)])
def test_a_planted_judge_that_is_gamed_raises_it(skills):
    """The mean vote on failures rises from 1/4 to 1/2, as measured where a policy collects votes in episodes that fail."""
    assert sum(alarmed(seed, skills, (0.25, 0.5)) for seed in range(8)) >= 7
