"""Changes of held-out results, and what they and a step's other measures raise an alarm for."""

from __future__ import annotations

import numpy as np
import pytest

from triforge.algorithms.alarms import alarms
from triforge.algorithms.verdict import Change, change_of, paired_means, paired_shares


def table(both: int, lost: int, won: int, none: int) -> list[tuple[bool, bool]]:
    kinds = (
        ((True, True), both),
        ((True, False), lost),
        ((False, True), won),
        ((False, False), none),
    )
    return [pair for pair, count in kinds for _ in range(count)]


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        (
            (14, 0, 5, 22),
            0.0115,
            0.2265,
        ),  # Altman and others, Statistics with confidence (2000), table 6.2
        ((36, 12, 2, 0), -0.3404, -0.0569),  # a negative correlation
        ((54, 0, 0, 0), -0.0664, 0.0664),  # nothing differs
    ],
)
def test_paired_shares_have_the_interval_of_newcombes_method_10(
    counts: tuple[int, int, int, int], low: float, high: float
) -> None:
    found = paired_shares(table(*counts))
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)
    both, lost, won, none = counts
    turned = paired_shares(table(both, won, lost, none))
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))


@pytest.mark.parametrize("episodes", [1, 8, 64])
def test_a_policy_that_did_not_change_is_seldom_called_better_or_worse(episodes: int) -> None:
    rng, words = np.random.default_rng(7), []
    for _ in range(1500):
        tasks = rng.beta(0.5, 1.5, episodes)
        first, second = (rng.random(episodes) < tasks for _ in range(2))
        found = paired_shares(list(zip(first.tolist(), second.tolist(), strict=True)))
        assert -1.0 <= found.low <= found.gain <= found.high <= 1.0
        words.append(found.word)
    assert words.count("not told apart") >= 0.94 * len(words)


def test_pairs_tell_more_than_two_samples_do() -> None:
    found = paired_shares(table(30, 1, 10, 23))  # 31 of 64, then 40
    assert found.word == "better"
    assert paired_shares(table(19, 12, 21, 12)).word == "not told apart", "the same two shares"


def test_scores_are_compared_task_by_task() -> None:
    found = paired_means([(0.1, 0.2), (0.9, 1.1), (0.4, 0.5), (0.7, 0.9), (0.2, 0.3)])
    assert found is not None
    assert (found.gain, found.word, found.pairs) == (pytest.approx(0.14), "better", 5)
    rising = paired_means([(0.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
    assert rising is not None
    assert rising.low < 0.0, "a difference may be below 0 where none is"
    assert paired_means([(0.0, 1.0)] * 3) is None


def test_the_pairs_that_would_tell_a_difference() -> None:
    assert Change(0.05, -0.05, 0.15, 100).pairs_to_tell == 400
    assert Change(0.0, -0.1, 0.1, 100).pairs_to_tell is None


def gain(low: float, high: float, name: str = "eval/sampled") -> dict[str, float]:
    ends = {f"{name}_gain/low": low, f"{name}_gain/high": high}
    return {f"{name}_gain": (low + high) / 2, f"{name}_gain_pairs": 64.0} | ends


def test_success_is_compared_before_the_score() -> None:
    score = gain(0.1, 0.2, "eval/sampled_score")
    assert change_of(score | {"eval/greedy_gain": 1.0}) == Change(
        pytest.approx(0.15), 0.1, 0.2, 64, "eval/sampled_score"
    )
    both = change_of(score | gain(-0.2, -0.1))
    assert both is not None
    assert both.word == "worse"
    assert change_of({"eval/sampled": 0.5}) is None


@pytest.mark.parametrize(
    ("measures", "letters"),
    [
        # the KL and entropy of `household` at 5e-4, whose success fell, and of runs that got better
        ({"policy/kl_k3": 0.75, "policy/entropy_share": 1.25}, "K"),
        ({"policy/kl_k3": 0.25, "policy/entropy_share": 0.19}, ""),
        ({"policy/kl_k3": 0.16, "policy/entropy_share": 1.4}, ""),
        ({"policy/entropy_share": 0.09}, "K"),
        ({"policy/entropy_share": 2.1}, "K"),
        (gain(-0.2, -0.01), "H"),
        (gain(-0.2, 0.01), ""),
        (gain(0.01, 0.2), ""),
        (gain(-2.0, -1.0, "eval/sampled_score"), "H"),
    ],
)
def test_alarms_of_a_policy_that_runs_off_or_falls(
    measures: dict[str, float], letters: str
) -> None:
    assert "".join(alarms(measures)) == letters
