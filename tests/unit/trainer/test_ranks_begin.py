"""The agreement of the ranks of a learner before they train, seen from the first of two."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner, StepReport
from services.trainer.learner.model.vision import uneven
from services.trainer.learner.optimiser import Counters
from services.trainer.learner.parallel.ranks import Ranks
from tests.batches import train_batch
from triforge.errors import NotFoundError, TrainerError
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import write_rows
from triforge.types import ImageRef, PlacedImage, TrainRow


class Pair(Ranks):
    """The first of two ranks; the second one begins after `other` updates more, or shards a model where this one does not."""

    def __init__(self, other: int = 0, *, shards: bool = True, torn: bool = False) -> None:
        super().__init__(torch.device("cpu"))
        self.world, self._other, self.shards, self._torn = 2, other, shards, torn

    def any(self, flag: bool) -> bool:
        return flag

    def sum(self, value: float) -> float:
        return 2 * value + (self._torn if isinstance(value, bool) else self._other)

    def broadcast(self, text: str | None = None) -> str:
        return text or ""


class Blind(Learner):
    """Meets what a rank may meet in a forward pass."""

    def __init__(self) -> None:
        pass

    @property
    def counters(self) -> Counters:
        return Counters()

    def train(self, *_: object, **__: object) -> StepReport:
        raise NotFoundError("image is not in the artifact store")


ALONE = Ranks(torch.device("cpu"))
SHOT = PlacedImage(
    image=ImageRef(id=f"sha256:{7:064x}", media_type="image/png", width=8, height=8, size=99),
    start=0,
    end=1,
)


def row(*images: PlacedImage) -> TrainRow:
    return TrainRow(
        key="k", ids=(1, 2, 3), logprobs=(0.0,) * 3, advantages=(0.0,) * 3, weights=(0.0, 0.0, 1.0),
        versions=(0,) * 3, task_id="t", images=images,
    )  # fmt: skip


def train(
    store: ArtifactStore, ranks: Ranks, rows: list[TrainRow], *, colocate: bool = False
) -> None:
    uri = write_rows(store, "runs/r/batches/1.parquet", rows)
    given: dict[str, Any] = {"batch_id": "r-1", "run_id": "r", "uri": uri, "num_rows": len(rows)}
    trainer = BatchTrainer(store, ranks)
    trainer.keep(train_batch("nowhere", version=0, **given), Blind())
    batch = train_batch("nowhere", version=1, colocate=colocate, **given)
    trainer.step(CheckpointStore(store, "r", "policy"), batch, lambda: False)


def test_rows_of_which_only_some_hold_images_are_refused_by_ranks_that_shard_a_model(
    store: ArtifactStore,
) -> None:
    late = SHOT.model_copy(update={"start": 2, "end": 3})
    rows = [row(SHOT), row(late)]
    with pytest.raises(TrainerError, match="train with --sharding replicate, or with one rank"):
        train(store, Pair(), rows)
    with pytest.raises(NotFoundError):  # one rank has begun
        train(store, ALONE, rows)
    with pytest.raises(RuntimeError, match="the other ranks wait"):  # and so have two
        train(store, Pair(shards=False), rows)
    assert [uneven(some) for some in (rows, rows[:1], rows[1:], [])] == [True, False, False, False]


@pytest.mark.parametrize(("ranks", "raised"), [(ALONE, NotFoundError), (Pair(), RuntimeError)])
def test_a_rank_that_finds_no_image_ends_its_process_if_others_wait_for_it(
    store: ArtifactStore, ranks: Ranks, raised: type[Exception]
) -> None:
    with pytest.raises(raised):
        train(store, ranks, [row(SHOT)])


def test_ranks_that_hold_a_model_in_two_ways_do_not_begin(store: ArtifactStore) -> None:
    with pytest.raises(TrainerError, match="choose it: --sharding full or replicate"):
        train(store, Pair(shards=False, torn=True), [row()])


def test_ranks_that_found_other_versions_do_not_mix_them(store: ArtifactStore) -> None:
    with pytest.raises(TrainerError, match="expected one version everywhere"):
        train(store, Pair(other=4), [row()])


def test_one_card_is_one_rank(store: ArtifactStore) -> None:
    with pytest.raises(TrainerError, match="given true with a learner of 2 ranks, expected one"):
        train(store, Pair(), [row()], colocate=True)
