"""How much a token counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triforge.algorithms.aggregation import token_weights

LOSSES = [[1, 1], [2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("aggregation", "options", "expected"),
    [
        ("token_mean", {}, 1.666667),
        ("step_mean", {}, 1.5),
        ("step_sum", {"length": 4}, 1.25),
        ("task_mean", {"units": ["a", "b"]}, 1.5),
        ("task_mean", {"units": ["a", "a"]}, 1.666667),
        ("trajectory_mean", {"units": [1, 2]}, 1.5),
        ("trajectory_mean", {"units": [1, 1]}, 1.666667),
    ],
)
def test_two_sequences_add_up_to_the_published_numbers(aggregation, options, expected):
    weights = token_weights([len(row) for row in LOSSES], aggregation, **options)
    total = sum(w * sum(row) for w, row in zip(weights, LOSSES, strict=True))
    assert total == pytest.approx(expected, abs=1e-6)


def test_means_over_trajectories_let_a_long_one_speak_no_louder():
    weights = token_weights([1, 1, 2], "trajectory_mean", units=["long", "long", "short"])
    assert weights == [1 / 4, 1 / 4, 1 / 4]
    assert token_weights([1, 1, 0], "trajectory_mean", units=["a", "a", "b"]) == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("aggregation", ["step_mean", "token_mean"])
def test_empty_responses_weigh_nothing_and_change_nothing(aggregation):
    assert token_weights([2, 0, 2], aggregation) == [1 / 4, 0.0, 1 / 4]
    assert token_weights([0], aggregation) == [0.0]
    assert token_weights([], aggregation) == []


@given(
    st.lists(st.integers(0, 50), min_size=1).filter(any),
    st.sampled_from(["step_mean", "token_mean"]),
)
def test_the_weights_of_all_tokens_sum_to_one(counts, aggregation):
    weights = token_weights(counts, aggregation)
    assert math.fsum(w * c for w, c in zip(weights, counts, strict=True)) == pytest.approx(1.0)
