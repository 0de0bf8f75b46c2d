import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.learner.model.token_batches import Sequences, rectangles
from services.trainer.learner.training_data import StepData
from triforge.errors import TrainerError
from triforge.types import TrainRow

CPU = torch.device("cpu")


def row(**changes: object) -> TrainRow:
    fields = {
        "key": "r", "ids": (7, 8, 9), "logprobs": (0.0, -1.0, -2.0), "advantages": (0.0, 0.5, 0.5),
        "weights": (0.0, 1.0, 0.0), "versions": (-1, 3, 3), "task_id": "t",
    }  # fmt: skip
    return TrainRow.model_validate({**fields, **changes})


def data_of(*rows: TrainRow) -> StepData:
    return StepData.from_rows(rows, max_tokens=3, vocabulary=10, version=3)


def test_each_scored_token_is_predicted_from_the_cell_before_it():
    two = Sequences(
        [np.array([10, 11, 12, 13]), np.array([20, 21])], [np.array([1, 3]), np.array([1])]
    )
    batch = two.batch([1, 0], CPU)
    assert batch.ids.tolist() == [[20, 0, 0, 0, 0, 0, 0, 0], [10, 11, 12, 0, 0, 0, 0, 0]]
    assert batch.predict.tolist() == [0, 8, 10]
    assert batch.targets.tolist() == [21, 11, 13]
    assert batch.cells.tolist() == [2, 0, 1]
    assert batch.tokens == 4


def test_rows_become_flat_arrays_of_their_trained_tokens():
    data = data_of(row(), row(weights=(0.0, 0.25, 0.5), versions=(-1, 2, 3)))
    assert data.weights.tolist() == [1.0, 0.25, 0.5]
    assert data.old.tolist() == [-1.0, -1.0, -2.0]
    assert data.advantages.tolist() == [0.5, 0.5, 0.5]
    assert (data.lags == 0).tolist() == [True, False, True]
    assert data.sequences.counts == [1, 2]


def test_a_row_of_context_only_costs_nothing():
    data = data_of(row(weights=(0.0, 0.0, 0.0)), row())
    assert data.sequences.counts == [1]
    assert data_of(row(weights=(0.0, 0.0, 0.0))).sequences.total == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ids": (7, 8, 10)}, "token id 10, expected ids below the model's vocabulary of 10"),
        ({"ids": (7, 8, -1)}, "expected ids below"),
        ({"weights": (1.0, 1.0, 0.0)}, "0 for the first token"),
        ({"weights": (0.0, -1.0, 0.0)}, "expected finite weights of at least 0"),
        ({"weights": (0.0, float("nan"), 0.0)}, "expected finite weights"),
        (
            {"logprobs": (0.0, float("-inf"), 0.0)},
            "log-probability or advantage that is not finite",
        ),
        ({"advantages": (0.0, float("nan"), 0.0)}, "not finite"),
        ({"logprobs": (0.0, -1.0)}, "given 3 ids and 2, 3, 3, 3 log-probabilities, advantages"),
        ({"advantages": (0.0,)}, "given 3 ids and 3, 1, 3, 3 log-probabilities"),
        ({"weights": (0.0, 1.0)}, "expected equal numbers"),
        ({"versions": ()}, "expected equal numbers"),
    ],
)
def test_a_malformed_row_is_refused_by_name(changes: dict[str, object], sentence: str):
    with pytest.raises(TrainerError, match="row 'r'") as caught:
        data_of(row(**changes))
    assert sentence in caught.value.detail


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=60), st.sampled_from([1, 64, 1000, 100_000])
)
def test_rectangles_hold_every_row_once_within_the_budget_and_little_padding(
    lengths: list[int], budget: int
):
    rows = list(range(len(lengths)))
    parts = rectangles(rows, lengths, budget)
    assert sorted(r for part in parts for r in part) == rows
    for part in parts:
        width = max(lengths[r] for r in part)
        assert len(part) == 1 or width * len(part) <= budget
        padding = sum(width - lengths[r] for r in part)
        assert padding <= max(256, budget // 64)
