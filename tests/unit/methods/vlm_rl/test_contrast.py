"""Screenshots against goals in words: the forms of the reward and the hierarchy, at the reference's values."""

from __future__ import annotations

import pytest

from methods.vlm_rl.contrast import clipped, combined, goal, unit, weighted
from triforge.errors import InputError


@pytest.mark.parametrize(
    ("z", "reward", "desired"),
    [(-0.01, 1.0, 25.0), (0.0, 1.0, 25.0), (0.01, 0.666667, 16.667), (0.03, 0.0, 0.0), (0.2, 0.0, 0.0)],
)  # fmt: skip
def test_the_margin_scales_the_desired_speed(z: float, reward: float, desired: float) -> None:
    found = clipped(0.25, 0.25 + z, 0.03)
    assert found == pytest.approx(reward, abs=1e-6)
    at_speed = combined(found, {"speed": desired}, factors={}, target="speed", limit=25.0)
    assert at_speed == pytest.approx(1.0, abs=1e-4), "the desired speed itself is worth 1"
    assert combined(found, {"speed": 0.0}, factors={}, target="speed", limit=25.0) == pytest.approx(
        1.0 - desired / 25.0, abs=1e-4
    )


def test_the_papers_form_weighs_both_goals() -> None:
    assert weighted(0.3, 0.1, 0.5) == pytest.approx(0.1)
    assert weighted(0.3, 0.1, 0.75) == pytest.approx(0.2)


def test_factors_of_the_state_multiply() -> None:
    limits = {"offset": 3.0, "angle": 90.0, "wobble": 0.4}
    state = {"speed": 10.0, "offset": -1.5, "angle": 45.0, "wobble": 0.1}
    found = combined(1.0, state, factors=limits, target="speed", limit=25.0)
    assert found == pytest.approx((1 - 15 / 25) * 0.5 * 0.5 * 0.75)
    assert combined(0.8, {"offset": 9.0}, factors={"offset": 3.0}) == 0.0, "never below 0"
    with pytest.raises(InputError, match="given 'angle', expected one of"):
        combined(1.0, {"offset": 0.0}, factors=limits)


def test_of_several_texts_the_mean_direction_counts() -> None:
    assert goal([unit([2.0, 0.0]), unit([0.0, 1.0])]) == pytest.approx([0.5**0.5] * 2)
    with pytest.raises(InputError, match="finite"):
        unit([float("nan")])
