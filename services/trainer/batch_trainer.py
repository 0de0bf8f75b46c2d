"""What is done with a batch: train it on all ranks and publish the version, or find that this was done before.

| version batch.version + 1 of the run   | what happens                           |
|----------------------------------------|----------------------------------------|
| is not published, nor any newer one    | train, publish, announce               |
| is published                           | announce again                         |
| was pruned, newer ones are published   | nothing: the run has moved on          |

A failure is announced as well (`WeightsReady.error`), so that the orchestrator stops the run with the reason. An artifact
store that does not answer is no failure: the step is taken again when it does.

Rank 0 talks to the streams and writes; the others follow its word. All ranks read the same rows and the same checkpoint. A
failure that one rank alone can have before training is made known to all of them. After that what is wrong with the rows
is wrong everywhere; a process that cannot read an image, or dies, takes the others along (torchrun ends them and may start
them again).
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from services.trainer.checkpoint import CheckpointStore, Start
from services.trainer.distributed import Interrupted, Ranks
from services.trainer.learner import Learner
from services.trainer.learner_process import GivenUp, failure, give_back_memory, smaller
from services.trainer.lora import LoraShape
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
from triforge.telemetry import tracing
from triforge.types import StepReport, TrainBatch, TrainRow, WeightsReady

log = logging.getLogger(__name__)


class BatchTrainer:
    """One rank of a learner.

    Args:
        store: rows, weights and checkpoints; all ranks see the same one.
        ranks: the processes that train together; it alone, on the CPU, by default.
    """

    def __init__(self, store: ArtifactStore, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks(torch.device("cpu"))
        self._store = store
        # The learner in memory, and the run, role and version whose state it holds.
        self._held: tuple[tuple[str, str, int], Learner] | None = None

    # ---- rank 0 ----

    def train(
        self, batch: TrainBatch, should_stop: Callable[[], bool] = lambda: False
    ) -> WeightsReady | None:
        """What is to be announced about a batch; None when the run has moved on. Blocks while it trains.

        Args:
            batch: new, old, or one that was trained before a crash.
            should_stop: asked between forward passes.

        Raises:
            GivenUp: it is to stop; nothing of the step is kept.
            UnavailableError: the artifact store is away; nothing of the step is kept, and it may be taken again.
        """
        try:
            return self._train_once(batch, should_stop)
        except Interrupted as error:
            self.drop()
            raise GivenUp from error
        except UnavailableError:
            self.drop()
            raise
        except TriforgeError as error:
            log.exception("batch %s", batch.batch_id)
            self.drop()
            return failure(batch, error)
        except (
            Exception
        ) as error:  # the border: an unforeseen fault fails this run, not the process
            log.exception("batch %s", batch.batch_id)
            if self.ranks.world > 1:
                raise  # the other ranks wait in the middle of a step; torchrun ends them with this one
            self.drop()
            return failure(batch, _foreseen(batch, error))

    def _train_once(
        self, batch: TrainBatch, should_stop: Callable[[], bool]
    ) -> WeightsReady | None:
        versions, target = CheckpointStore(self._store, batch.run_id, batch.role), batch.version + 1
        ready = versions.ready(target)
        if ready is not None or (versions.newest() or 0) > target:
            log.info("batch %s: version %d is published already", batch.batch_id, target)
            return ready
        with tracing.span("train", rows=batch.num_rows, tokens=batch.num_tokens):
            learner, report = self.step(versions, batch, should_stop)
        if (versions.newest() or 0) > target:
            return None  # this process stood still, and others have gone on
        with tracing.span("publish"):
            ready, mine = versions.publish(learner, batch, report, keep=batch.keep)
        if mine:
            self.keep(batch, learner)
        shown = [n for n in ("loss", "grad_norm", "tokens_per_s", "seconds") if n in report.metrics]
        said = ", ".join(f"{name} {report.metrics[name]:.4g}" for name in shown)
        log.info("batch %s: version %d, %s", batch.batch_id, ready.version, said)
        return ready

    def step(
        self, versions: CheckpointStore, batch: TrainBatch, should_stop: Callable[[], bool]
    ) -> tuple[Learner, StepReport]:
        """Take a step with all ranks. The learner is in memory again only after `keep`.

        Raises:
            TrainerError: as `Learner.train`, or another rank could not begin.
            Interrupted: it is to stop; nothing of the step is kept.
        """
        held = self._held is not None and self._held[0] == _place(batch, batch.version)
        if self.ranks.world > 1:
            self.ranks.broadcast(json.dumps({"batch": batch.model_dump(mode="json"), "held": held}))
        learner, rows = self._begin(versions, batch, held=held)
        return learner, self._step(learner, batch, rows, should_stop)

    def keep(self, batch: TrainBatch, learner: Learner) -> None:
        """The learner holds the state that was published after a batch."""
        self._held = (_place(batch, batch.version + 1), learner)

    def drop(self) -> None:
        """Forget the learner in memory."""
        self._held = None

    def close(self) -> None:
        """Let the other ranks go; nothing is trained afterwards."""
        if self.ranks.world > 1 and self.ranks.rank == 0:
            self.ranks.broadcast("")
        self.ranks.leave()

    # ---- the other ranks ----

    def follow(self) -> None:
        """Every rank but the first: train as the first one says, which also says when to go."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, signal.SIG_IGN)
        while word := self.ranks.broadcast():
            order = json.loads(word)
            batch = TrainBatch.model_validate_json(json.dumps(order["batch"]))
            versions = CheckpointStore(self._store, batch.run_id, batch.role)
            try:
                learner, rows = self._begin(versions, batch, held=bool(order["held"]))
                self._step(learner, batch, rows, lambda: False)
            except (TriforgeError, Interrupted) as error:
                log.warning("batch %s: %s", batch.batch_id, error)
                self.drop()
            else:
                self.keep(batch, learner)
        self.ranks.leave()

    # ---- all ranks ----

    def _begin(
        self, versions: CheckpointStore, batch: TrainBatch, *, held: bool
    ) -> tuple[Learner, Sequence[TrainRow]]:
        """Rows and learner, on all ranks or on none."""
        found: tuple[Learner, Sequence[TrainRow]] | None = None
        problem: TriforgeError | None = None
        try:
            rows = read_rows(self._store, batch.uri)
            found = self._learner(versions, batch, held=held), rows
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

    def _learner(self, versions: CheckpointStore, batch: TrainBatch, *, held: bool) -> Learner:
        """The learner in memory if it holds the state the batch starts from, else the one on the disk."""
        kept, self._held = self._held, None  # given back only after a whole step
        if held:
            if kept is None or kept[0] != _place(batch, batch.version):
                raise TrainerError(f"batch {batch.batch_id}: this rank lost its learner")
            return kept[1]
        del kept
        start = Start(
            initial=Path(batch.model_path),
            base_version=batch.base_version,
            expected=batch.folder_version,
            device=self.ranks.device,
            shape=LoraShape.of(batch.learner),
            seed=batch.seed,
            ranks=self.ranks,
        )
        return versions.start_of(batch, start)

    def _check(self, batch: TrainBatch, rows: Sequence[TrainRow]) -> None:
        """Ranks that hold shares meet in every layer of every pass: none may see images where another sees none."""
        for objective in {row.objective for row in rows} if self.ranks.shards else ():
            if uneven([row for row in rows if row.objective == objective]):
                raise TrainerError(
                    f"batch {batch.batch_id}: given rows with images and rows without, expected all of one kind with "
                    f"{self.ranks.world} ranks that shard a model; train with --sharding replicate, or with one rank"
                )

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


def _place(batch: TrainBatch, version: int) -> tuple[str, str, int]:
    return batch.run_id, batch.role, version


def _foreseen(batch: TrainBatch, error: Exception) -> TriforgeError:
    """An error of ours in the place of any other."""
    if isinstance(
        error, torch.OutOfMemoryError
    ):  # of a GPU; what wants too much of the machine's is killed
        said = str(error).partition("\n")[0]
        return TrainerError(
            f"the GPU has too little memory for this batch ({batch.num_rows} rows, {batch.num_tokens} tokens): "
            f"{smaller(batch)}, or set activation_checkpointing there ({said})"
        )
    return TriforgeError(f"{type(error).__name__}: {error}")
