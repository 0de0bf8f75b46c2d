"""Faults of a learner in a step: a store that is away costs it a moment, too small a GPU the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.parallel.ranks import Ranks
from tests.unit.trainer.conftest import VERSION, MakeBatch
from triforge.errors import TrainerError, UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import write_rows
from triforge.types import TrainBatch, TrainRow


class Far(ArtifactStore):
    """An object store: `away` says for how many reads of rows it does not answer."""

    away = 0

    def read(self, name: str) -> bytes:
        if name.endswith(".parquet") and self.away:
            self.away -= 1
            raise UnavailableError("the object store does not answer")
        return super().read(name)


class Pair(Ranks):
    """The first of two ranks; the other one does not begin, for a reason that passes or for one that lasts."""

    def __init__(self, *, lasts: bool) -> None:
        super().__init__(torch.device("cpu"))
        self.world, self._asked, self._lasts = 2, 0, lasts

    def any(self, flag: bool) -> bool:
        self._asked += 1  # first whether anybody could not begin, then whether for good
        return flag or self._asked == 1 or self._lasts

    def broadcast(self, text: str | None = None) -> str:
        return text or ""


@pytest.fixture
def far(tmp_path: Path) -> Far:
    return Far(str(tmp_path / "artifacts"))


@pytest.fixture
def batch(far: Far, make_batch: MakeBatch, rows: list[TrainRow]) -> TrainBatch:
    uri = write_rows(far, "runs/run/batches/1.parquet", rows)
    return make_batch().model_copy(update={"uri": uri})


def test_a_step_whose_rows_cannot_be_read_now_is_taken_again_and_fails_no_run(
    far: Far, batch: TrainBatch
) -> None:
    learner = BatchTrainer(far)
    far.away = 2
    for _ in range(2):
        with pytest.raises(UnavailableError):
            learner.train(batch)
    ready = learner.train(batch)
    assert ready is not None
    assert (ready.error, ready.version) == (None, VERSION + 1)


def test_a_gpu_that_is_too_small_fails_the_run_with_the_options_that_help(
    far: Far, batch: TrainBatch
) -> None:
    class Small(BatchTrainer):
        def step(self, *_: object) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore of it")

    ready: Any = Small(far).train(batch)
    assert ready.error.kind == TrainerError.kind
    assert "lower trainer.policy.token_budget or trainer.policy.max_tokens" in ready.error.detail
    assert ready.error.detail.endswith("(CUDA out of memory. Tried to allocate 2 GiB.)")


@pytest.mark.parametrize(("lasts", "raised"), [(False, UnavailableError), (True, TrainerError)])
def test_ranks_take_a_step_again_that_one_of_them_could_not_begin_now(
    far: Far, batch: TrainBatch, lasts: bool, raised: type[Exception]
) -> None:
    trainer = BatchTrainer(far, Pair(lasts=lasts))
    with pytest.raises(raised, match="another rank could not begin"):
        trainer.step(CheckpointStore(far, "run", "policy"), batch, lambda: False)
