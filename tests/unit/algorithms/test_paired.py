"""Tests over seeds, against values computed by hand and from printed tables."""

from __future__ import annotations

import math

import pytest

from triforge.algorithms.paired import (
    against_first,
    greater,
    holm,
    mean,
    paired,
    pass_at,
    sign_test,
    t_quantile,
    t_tail,
)
from triforge.errors import InputError


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [
        (12.706, 1, 0.025), (4.303, 2, 0.025), (2.353, 3, 0.05), (2.571, 5, 0.025), (3.365, 5, 0.01), (2.201, 11, 0.025),
        (1.0, 1, 0.25),  # Cauchy: 1/2 - atan(1) / pi
        (math.sqrt(2), 2, 0.14644661),  # (1 - 1 / sqrt 2) / 2
        (0.0, 4, 0.5), (math.inf, 5, 0.0), (-2.571, 5, 0.975),
    ],
)  # fmt: skip
def test_the_tail_of_students_t(t: float, freedom: int, p: float) -> None:
    assert t_tail(t, freedom) == pytest.approx(p, abs=1e-4)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (5, 2.571), (29, 2.045), (1000, 1.962)]
)
def test_quantiles_of_printed_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-4)


def test_intervals_are_students_t_over_seeds() -> None:
    found = mean([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found.value == pytest.approx(0.3)
    assert found.half == pytest.approx(2.776 * math.sqrt(0.025 / 5), rel=1e-3)
    assert found.text() == "0.300 ± 0.196"
    assert mean([0.2]).text(sign=True) == "+0.200 ± ?"
    with pytest.raises(ValueError, match="no values"):
        mean([])


def test_differences_are_paired_by_seed() -> None:
    found = paired({1: 0.5, 2: 0.9, 3: 0.1}, {1: 0.4, 2: 0.8, 9: 0.0})
    assert found is not None
    assert found.value == pytest.approx(0.1)
    assert found.half == pytest.approx(0.0, abs=1e-9)
    assert paired({1: 0.5}, {2: 0.5}) is None


def test_a_paired_test_looks_at_differences_of_a_seed_only() -> None:
    # differences .1, .2, .3: mean .2, deviation .1, t = .2 / (.1 / sqrt 3)
    found = greater({1: 0.5, 2: 0.9, 3: 0.4, 4: 1.0}, {1: 0.4, 2: 0.7, 3: 0.1, 9: 0.0})
    assert found is not None
    assert found.mean.value == pytest.approx(0.2)
    assert found.t == pytest.approx(2 * math.sqrt(3))
    assert found.p == pytest.approx(0.0371, abs=1e-4)
    assert greater({1: 0.5}, {1: 0.4}) is None
    alike = greater({1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5})
    assert alike is not None
    assert (alike.t, alike.p) == (0.0, 0.5)
    always = greater({1: 0.5, 2: 0.5}, {1: 0.25, 2: 0.25})
    assert always is not None
    assert (always.t, always.p) == (math.inf, 0.25)  # two signs


def test_arms_are_compared_with_the_first_and_corrected_for_their_number() -> None:
    base = dict.fromkeys(range(6), 0.5)
    up = {seed: 0.7 + 0.01 * seed for seed in base}
    arms = {"base": base, "up": up, "down": {s: 1 - v for s, v in up.items()}, "late": {1: 0.9}}
    found = against_first({**arms, "noise": {s: 0.5 + 0.1 * (-1) ** s for s in base}, "none": {}})
    words = {name: one.word for name, one in found.items()}
    assert words == {"up": "better", "down": "worse", "late": "undecided", "noise": "undecided"}  # fmt: skip
    alone = against_first({"base": base, "up": up})["up"]
    assert alone.mean.value == pytest.approx(0.225)
    test = greater(up, base)
    assert test is not None
    assert alone.p == pytest.approx(2 * test.p)  # two-sided
    assert found["up"].p == pytest.approx(3 * alone.p)  # of three arms with two seeds or more


def test_holms_correction_keeps_the_order() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx(
        {"a": 0.06, "b": 0.03, "c": 0.06}
    )
    assert holm({"a": 0.5, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_the_sign_test_counts_the_tails_of_a_fair_coin() -> None:
    assert sign_test(10, 0) == 2.0**-10
    assert sign_test(8, 2) == pytest.approx(56 / 1024)
    assert sign_test(0, 0) == 1.0


@pytest.mark.parametrize(
    ("k", "tried", "solved", "expected"),
    [(1, 4, 1, 0.25), (2, 4, 1, 0.5), (2, 4, 2, 1 - 1 / 6), (4, 4, 1, 1.0), (32, 64, 0, 0.0), (3, 5, 3, 1.0)],
)  # fmt: skip
def test_pass_at_k_by_hand(k: int, tried: int, solved: int, expected: float) -> None:
    assert pass_at(k, tried, solved) == pytest.approx(expected)


def test_pass_at_k_needs_as_many_tries() -> None:
    with pytest.raises(InputError, match="1 <= k <= tried"):
        pass_at(32, 8, 1)
