"""The log-probability of each token at training is stored with the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.learner import Learner
from tests.unit.trainer.conftest import MakeBatch
from triforge.errors import StorageError
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import write_rows
from triforge.store.training_logprobs import read_logprobs, write_logprobs
from triforge.types import TrainRow


def test_before_the_first_update_they_are_those_of_sampling(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
) -> None:
    report = Learner.fresh(model_folder).train(make_batch(updates_per_step=1), rows)
    assert [key for key, _, _ in report.logprobs] == [row.key for row in rows]
    for (_, places, values), row in zip(report.logprobs, rows, strict=True):
        assert places.tolist() == [n for n, weight in enumerate(row.weights) if weight > 0]
        assert values == pytest.approx([row.logprobs[n] for n in places], abs=1e-5)


def test_a_trained_batch_leaves_them_where_a_trajectory_finds_its_own(
    store: ArtifactStore, make_batch: MakeBatch, rows: list[TrainRow]
) -> None:
    named = [row.model_copy(update={"key": f"{row.key}/{n % 2}"}) for n, row in enumerate(rows)]
    batch = make_batch(uri=write_rows(store, "runs/run/batches/1.parquet", named))
    ready = BatchTrainer(store).train(batch)
    assert ready is not None
    assert ready.error is None
    found = read_logprobs(store, batch.run_id, batch.step, "row-3")
    assert [*found] == [1]
    assert [*found[1]] == [n for n, weight in enumerate(rows[3].weights) if weight > 0]
    assert read_logprobs(store, batch.run_id, batch.step, "row-99") == {}
    assert read_logprobs(store, batch.run_id, 99, "row-3") == {}


def test_a_step_without_rows_and_a_damaged_file(store: ArtifactStore) -> None:
    write_logprobs(store, "run", 1, [])
    assert read_logprobs(store, "run", 1, "row") == {}
    write_logprobs(store, "run", 2, [("t/0", np.array([3]), np.array([-0.5], dtype=np.float32))])
    assert read_logprobs(store, "run", 2, "t") == {0: {3: -0.5}}
    store.write("runs/run/logprobs/00003.parquet", b"no such file")
    with pytest.raises(StorageError, match="00003"):
        read_logprobs(store, "run", 3, "t")
