"""The arithmetic of collapse: what thoughts tell of their prompts, and what is left of a measure."""

import math

import pytest

from methods.starpo.collapse import Dependence, dependence, jump, left


def test_the_information_of_two_thoughts_by_hand() -> None:
    # log 2 - log(1 + e^-2) and log 2 - log(1 + e^-1)
    found = dependence([[-1.0, -3.0], [-2.0, -1.0]])
    assert found.information == pytest.approx((0.566219 + 0.379885) / 2, abs=1e-6)
    assert found.retrieved == 1.0


@pytest.mark.parametrize("count", [2, 5])
def test_templates_tell_nothing_and_thoughts_of_their_own_tell_the_prompt(count: int) -> None:
    template = dependence([[-3.0] * count] * count)
    assert template == Dependence(0.0, pytest.approx(1 / count))
    own = [[-1.0 if i == j else -900.0 for j in range(count)] for i in range(count)]
    assert dependence(own) == Dependence(pytest.approx(math.log(count)), 1.0)


def test_what_is_left_is_a_share_of_the_first_values() -> None:
    assert left([4.0, 2.0], 2) is None
    assert left([4.0, 2.0, 1.0], 2) == pytest.approx(0.5)
    assert left([0.0, 0.0, 1.0], 2) is None


def test_a_jump_is_measured_against_the_median_of_the_values_before() -> None:
    assert jump([1.0, 1.0], 2) is None
    assert jump([9.0, 1.0, 2.0, 9.0, 20.0], 3) == 10.0
