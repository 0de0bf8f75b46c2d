"""Tests over seeds, against values computed by hand and from printed tables."""

from __future__ import annotations

import math

import pytest

from experiments.statistics import greater, holm, t_tail, trend


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
    assert always.p == pytest.approx(0.0, abs=1e-12)


def test_the_trend_is_the_mean_slope_of_the_seeds() -> None:
    # slopes over 0, 1, 2, 3: weights -1.5, -.5, .5, 1.5 over 5
    arms = [{1: 0.1, 2: 0.3}, {1: 0.2, 2: 0.2}, {1: 0.3, 2: 0.4}, {1: 0.4, 2: 0.5}]
    found = trend(arms)
    assert found is not None
    # seed 1: .1; seed 2: (1.5 * .2 + .5 * .2) / 5 = .08; their difference is .02, so t = .09 / .01
    assert found.mean.value == pytest.approx(0.09)
    assert found.t == pytest.approx(9.0)
    assert found.p == pytest.approx(t_tail(9.0, 1))
    falling = trend(arms[::-1])
    assert falling is not None
    assert falling.p == pytest.approx(1 - found.p)


def test_holms_correction_keeps_the_order() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx(
        {"a": 0.06, "b": 0.03, "c": 0.06}
    )
    assert holm({"a": 0.5, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
