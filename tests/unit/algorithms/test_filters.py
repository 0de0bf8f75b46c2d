"""Bands and rewrite triggers."""

import pytest

from triforge.algorithms.algorithm import resolve
from triforge.algorithms.filters import in_band, policy_filter, reward_filter, rewrite_direction

DEFAULT = resolve("rlanything")


@pytest.mark.parametrize(("successes", "keep"), [(0, False), (1, True), (4, True), (5, False)])
def test_both_ends_of_a_band_belong_to_it(successes, keep):
    assert (reward_filter(successes, 5, algorithm=DEFAULT) is None) is keep


def test_a_task_without_measurement_is_kept_by_no_band():
    assert in_band(0, 0, None, reason="x") == "no measured rollout"
    assert policy_filter(0, 0, DEFAULT)


def test_without_a_band_every_measured_task_is_kept():
    assert policy_filter(0, 8, DEFAULT) is None


def test_stacked_bands_let_the_first_decide():
    stacked = resolve("rlanything_paper", {"policy_band": [0.5, 0.6]})
    assert reward_filter(1, 4, algorithm=stacked) == "outside policy band"
    assert reward_filter(2, 4, algorithm=stacked) is None


@pytest.mark.parametrize(
    ("successes", "measured", "direction"),
    [
        (5, 5, "harder"),
        (4, 5, None),
        (8, 10, None),
        (9, 10, "harder"),
        (1, 5, None),
        (2, 10, None),
        (1, 10, "easier"),
        (0, 8, "easier"),
        (0, 0, None),
    ],
)
def test_a_rewrite_needs_an_accuracy_strictly_outside_the_band(successes, measured, direction):
    assert rewrite_direction(successes, measured, band=DEFAULT) == direction
