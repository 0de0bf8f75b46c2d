"""The ranks of one learner and what they do together: rank 0 talks to the streams and the disk, the others follow.

    rank 0      batch ─► tell ─► read rows, take the learner ─► agree ─► train ─► publish, announce
    others          follow ─► read rows, take the learner ─► agree ─► train ─► wait for the next word

All ranks read the same rows and the same checkpoint and come to the same decisions; only the forward passes are shared out.
A failure that one rank alone can have before training is told to all of them. After that what is wrong with the rows is
wrong everywhere; a process that cannot read an image, or dies, takes the others along (torchrun ends them and may start
them again).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from services.trainer.checkpoint import Shelf
from services.trainer.distributed import Ranks
from services.trainer.learner import Interrupted, Learner
from services.trainer.lora import LoraShape
from services.trainer.memory import give_back_memory
from services.trainer.train_settings import TrainSettings
from services.trainer.vision import uneven
from triforge.errors import (
    NotFoundError,
    StorageError,
    TrainerError,
    TriforgeError,
    UnavailableError,
)
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import read_rows
from triforge.types import StepReport, TrainBatch, TrainRow

log = logging.getLogger(__name__)


class Crew:
    """One rank of a learner.

    Args:
        store: rows and checkpoints; all ranks see the same one.
        ranks: who they are.
        device: where this one trains.
    """

    def __init__(
        self, store: ArtifactStore, ranks: Ranks, device: torch.device | None = None
    ) -> None:
        self.ranks = ranks
        self._store, self._device = store, device
        # The learner in memory, and the run, role and version whose state it holds.
        self._held: tuple[tuple[str, str, int], Learner] | None = None

    def train(
        self, shelf: Shelf, batch: TrainBatch, should_stop: Callable[[], bool]
    ) -> tuple[Learner, StepReport]:
        """Rank 0: take a step with all ranks. The learner is in memory again only after `keep`.

        Args:
            shelf: of the batch's run and role.
            batch: new.
            should_stop: asked between forward passes.

        Raises:
            TrainerError: as `Learner.train`, or another rank could not begin.
            Interrupted: told to stop; nothing of the step is kept.
        """
        start = (batch.run_id, batch.role, batch.version)
        held = self._held is not None and self._held[0] == start
        if self.ranks.world > 1:
            self.ranks.tell(json.dumps({"batch": batch.model_dump(mode="json"), "held": held}))
        learner, rows = self._begin(shelf, batch, held=held)
        return learner, self._step(learner, batch, rows, should_stop)

    def keep(self, batch: TrainBatch, learner: Learner) -> None:
        """The learner holds the state that was published after a batch."""
        self._held = ((batch.run_id, batch.role, batch.version + 1), learner)

    def drop(self) -> None:
        """Forget the learner in memory."""
        self._held = None

    def follow(self) -> None:
        """The other ranks: do as rank 0 says until it says nothing more."""
        while word := self.ranks.tell():
            told = json.loads(word)
            batch = TrainBatch.model_validate(told["batch"])
            shelf = Shelf(self._store, batch.run_id, batch.role)
            try:
                learner, rows = self._begin(shelf, batch, held=bool(told["held"]))
                self._step(learner, batch, rows, lambda: False)
            except (TriforgeError, Interrupted) as error:
                log.warning("batch %s: %s", batch.batch_id, error)
                self.drop()
            else:
                self.keep(batch, learner)

    def dismiss(self) -> None:
        """Rank 0: let the others go."""
        if self.ranks.world > 1 and self.ranks.rank == 0:
            self.ranks.tell("")
        self.ranks.leave()

    def _begin(
        self, shelf: Shelf, batch: TrainBatch, *, held: bool
    ) -> tuple[Learner, Sequence[TrainRow]]:
        """Rows and learner, on all ranks or on none."""
        found: tuple[Learner, Sequence[TrainRow]] | None = None
        problem: TriforgeError | None = None
        try:
            rows = read_rows(self._store, batch.uri)
            found = self._learner(shelf, batch, held=held), rows
            self._check(batch, rows)
        except TriforgeError as error:
            problem = error
        failed = self.ranks.any(problem is not None)
        final = self.ranks.any(not (problem is None or isinstance(problem, UnavailableError)))
        if problem is not None:
            raise problem
        if found is None or failed:
            sentence = f"batch {batch.batch_id}: another rank could not begin; its log says why"
            if not final:  # it was away from the store, and may be there the next time
                raise UnavailableError(sentence)
            raise TrainerError(f"{sentence}. Do all ranks see the same artifacts?")
        if not self._alike(self.ranks.shards):
            raise TrainerError(
                f"batch {batch.batch_id}: some ranks have the memory to hold the whole model and others do not, expected "
                "one way of all; choose it: --sharding full or replicate"
            )
        updates = found[0].counters.updates
        if not self._alike(updates):
            raise TrainerError(
                f"batch {batch.batch_id}: this rank begins after {updates} updates and another one after more or fewer, "
                "expected one version everywhere. Do all ranks see the same artifacts?"
            )
        return found

    def _alike(self, mine: float) -> bool:
        """Whether a number is the same on all ranks."""
        return not self.ranks.any(self.ranks.sum(mine) != mine * self.ranks.world)

    def _step(
        self,
        learner: Learner,
        batch: TrainBatch,
        rows: Sequence[TrainRow],
        should_stop: Callable[[], bool],
    ) -> StepReport:
        """Train. Pixels are read by the rank that needs them, so what the store lacks may fail on one rank alone."""
        try:
            return learner.train(batch, rows, should_stop=should_stop)
        except (NotFoundError, StorageError, UnavailableError) as error:
            if self.ranks.world == 1:
                raise
            raise RuntimeError(
                "the other ranks wait in the middle of a step; this process ends with them"
            ) from error
        finally:
            give_back_memory()

    def _check(self, batch: TrainBatch, rows: Sequence[TrainRow]) -> None:
        """Ranks that hold shares meet in every layer of every pass: none may see images where another sees none."""
        for objective in {row.objective for row in rows} if self.ranks.shards else ():
            if uneven([row for row in rows if row.objective == objective]):
                raise TrainerError(
                    f"batch {batch.batch_id}: given rows with images and rows without, expected all of one kind with "
                    f"{self.ranks.world} ranks that shard a model; train with --sharding replicate, or with one rank"
                )

    def _learner(self, shelf: Shelf, batch: TrainBatch, *, held: bool) -> Learner:
        """The learner in memory if it holds the state the batch starts from, else the one on the shelf."""
        kept, self._held = self._held, None  # given back only after a whole step
        if held:
            start = (batch.run_id, batch.role, batch.version)
            if kept is None or kept[0] != start:
                raise TrainerError(f"batch {batch.batch_id}: this rank lost its learner")
            return kept[1]
        del kept
        settings = TrainSettings.of(batch)
        return shelf.start_of(
            batch,
            base_version=settings.base_version,
            expected=settings.folder_version,
            initial=Path(settings.model_path),
            device=self._device,
            shape=LoraShape.of(settings.learner),
            seed=settings.seed,
            ranks=self.ranks,
        )
