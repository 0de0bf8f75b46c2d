"""Training of one batch: train it on all ranks and publish the version, or return the version that exists already.

A failure is announced, too (`WeightsReady.error`), and the orchestrator stops the run with this reason. An artifact store
that does not answer is no failure: the step is taken again when the store answers.

Rank 0 reads the stream and writes versions; the other ranks follow its orders. All ranks read the same rows and the same
checkpoint. Before training, the ranks exchange whether each of them can begin. After that a rank that fails alone (an image
that it cannot read, a killed process) ends all of them; torchrun may start them again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner, StepReport
from services.trainer.learner.memory import give_back_memory
from services.trainer.learner.model.vision import uneven
from services.trainer.learner.parallel.ranks import Interrupted, Ranks
from triforge.errors import (
    NotFoundError,
    StorageError,
    TrainerError,
    TriforgeError,
    UnavailableError,
)
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import read_rows
from triforge.store.training_logprobs import write_logprobs
from triforge.telemetry import tracing
from triforge.types import ErrorInfo, TrainBatch, TrainRow, WeightsReady

log = logging.getLogger(__name__)

Stop = Callable[[], bool]


class BatchTrainer:
    """One rank of a learner; all ranks see the same `store`. Alone, on the CPU, without `ranks`."""

    def __init__(self, store: ArtifactStore, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks(torch.device("cpu"))
        self._store = store
        # The learner in memory, and the run, role and version whose state it holds.
        self._held: tuple[tuple[str, str, int], Learner] | None = None
        self._writer, self._written = ThreadPoolExecutor(1), Future[None]()
        self._written.set_result(None)

    # ---- rank 0 ----

    def train(self, batch: TrainBatch, should_stop: Stop = lambda: False) -> WeightsReady | None:
        """Train a batch and return its announcement; None if the run has moved on. Blocks while it trains.

        Args:
            batch: new, old, or one that was trained before a crash.

        Raises:
            Interrupted: it is to stop; nothing of the step is kept.
            UnavailableError: the artifact store is away; nothing of the step is kept, and it may be taken again.
        """
        try:
            return self._train(batch, should_stop)
        except (Interrupted, UnavailableError):
            self.drop()
            raise
        except Exception as error:  # the border: a fault fails this run, not the process
            log.exception("batch %s", batch.batch_id)
            if self.ranks.world > 1 and not isinstance(error, TriforgeError):
                raise  # the other ranks wait in the middle of a step; torchrun ends them with this one
            self.drop()
            return failure(batch, error)
        finally:
            if batch.colocate and self.ranks.device.type == "cuda":
                torch.cuda.empty_cache()

    def _train(self, batch: TrainBatch, should_stop: Stop) -> WeightsReady | None:
        versions, target = CheckpointStore(self._store, batch.run_id, batch.role), batch.version + 1
        passed = versions.newest() > target
        ready = versions.ready(target) if passed else versions.ready_or_free(batch)
        if ready is not None or passed:
            log.info("batch %s: version %d is published already", batch.batch_id, target)
            return ready
        with tracing.span("train", rows=batch.num_rows, tokens=batch.num_tokens):
            learner, report = self.step(versions, batch, should_stop)
        if versions.newest() > target:
            return None  # this process stood still, and others have gone on
        if batch.role == "policy":
            write_logprobs(self._store, batch.run_id, batch.step, report.logprobs)
        with tracing.span("publish"):
            ready, mine = versions.publish(learner, batch, report, keep=batch.keep)
        if mine:
            if batch.checkpoint == "after":
                self._written = self._writer.submit(self._write, versions, learner, batch, ready)
            self.keep(batch, learner)
        shown = [n for n in ("loss", "grad_norm", "tokens_per_s", "seconds") if n in report.metrics]
        figures = ", ".join(f"{name} {report.metrics[name]:.4g}" for name in shown)
        log.info("batch %s: version %d, %s", batch.batch_id, ready.version, figures)
        return ready

    def step(
        self, versions: CheckpointStore, batch: TrainBatch, should_stop: Stop
    ) -> tuple[Learner, StepReport]:
        """Take a step with all ranks. The learner is in memory again only after `keep`.

        Raises:
            TrainerError: as `Learner.train`, or another rank could not begin.
            Interrupted: it is to stop; nothing of the step is kept.
        """
        self._written.result()  # the other ranks take part in it
        held = self._held is not None and self._held[0] == _place(batch, batch.version)
        held = held and not batch.restarts
        if self.ranks.world > 1:
            self.ranks.broadcast(json.dumps({"batch": batch.model_dump(mode="json"), "held": held}))
        return self._step(versions, batch, should_stop, held=held)

    def keep(self, batch: TrainBatch, learner: Learner) -> None:
        """Keep the learner in memory: it holds the state that was published after a batch."""
        if batch.colocate:
            self._written.result()
            learner.release_memory()
        self._held = (_place(batch, batch.version + 1), learner)

    def drop(self) -> None:
        """Forget the learner in memory."""
        self._held = None

    def close(self) -> None:
        """Let the other ranks go when the last checkpoint is written; nothing is trained afterwards."""
        self._written.result()
        self.ranks.broadcast("")

    def _write(
        self, versions: CheckpointStore, learner: Learner, batch: TrainBatch, ready: WeightsReady
    ) -> None:
        """Write a checkpoint while the next step is played; one that fails is missed by a restart alone."""
        if self.ranks.device.type == "cuda":
            torch.cuda.set_device(self.ranks.device)  # of this thread
        try:
            versions.write_later(learner, batch, ready)
        except Exception:
            log.exception(
                "version %d has no checkpoint; a restart begins with an older one", ready.version
            )

    # ---- the other ranks ----

    def follow(self) -> None:
        """Every rank but the first: train and give shares as the first one says, which also says when to go."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, signal.SIG_IGN)
        while word := self.ranks.broadcast():
            order = json.loads(word)
            if "write" in order:
                assert self._held is not None  # rank 0 publishes a step that all have taken
                with contextlib.suppress(OSError):  # which rank 0 hears as well
                    self._held[1].take_part(order["write"], Path(order["folder"]))
                continue
            batch = TrainBatch.model_validate_json(json.dumps(order["batch"]))
            versions = CheckpointStore(self._store, batch.run_id, batch.role)
            try:
                learner, _ = self._step(versions, batch, lambda: False, held=bool(order["held"]))
            except (TriforgeError, Interrupted) as error:
                log.warning("batch %s: %s", batch.batch_id, error)
                self.drop()
            else:
                self.keep(batch, learner)

    # ---- all ranks ----

    def _step(
        self, versions: CheckpointStore, batch: TrainBatch, should_stop: Stop, *, held: bool
    ) -> tuple[Learner, StepReport]:
        kept, self._held = self._held, None  # given back only after a whole step
        found: tuple[Learner, Sequence[TrainRow]] | None = None
        problem: TriforgeError | None = None
        try:
            if batch.colocate and self.ranks.world > 1:
                raise TrainerError(
                    f"run.colocate: given true with a learner of {self.ranks.world} ranks, expected one: it is for one card"
                )
            rows = read_rows(self._store, batch.uri)
            if held:
                if kept is None or kept[0] != _place(batch, batch.version):
                    raise TrainerError(f"batch {batch.batch_id}: this rank lost its learner")
                kept[1].resume_memory()
                found = kept[1], rows
            else:
                del kept
                found = versions.start_of(batch, self.ranks), rows
            self._check_images(batch, rows)
        except TriforgeError as error:
            problem = error
        if self.ranks.world > 1:
            self._agree(batch, found[0] if found else None, problem)
        if problem is not None or found is None:
            raise problem or AssertionError("a learner or a reason why there is none")
        try:
            return found[0], found[0].train(batch, found[1], should_stop=should_stop)
        except (NotFoundError, StorageError, UnavailableError) as error:
            if self.ranks.world == 1:
                raise
            # Pixels are read by the rank that needs them, so this one may fail alone.
            raise RuntimeError(
                "the other ranks wait in the middle of a step; this process ends with them"
            ) from error
        finally:
            give_back_memory()

    def _agree(
        self, batch: TrainBatch, learner: Learner | None, problem: TriforgeError | None
    ) -> None:
        """Raise on all ranks if one of them cannot begin, or would begin from another state."""
        failed = self.ranks.any(problem is not None)
        final = self.ranks.any(not (problem is None or isinstance(problem, UnavailableError)))
        if problem is not None:
            raise problem
        if learner is None or failed:
            sentence = f"batch {batch.batch_id}: another rank could not begin; its log says why"
            if not final:  # it was away from the store, and may be there the next time
                raise UnavailableError(sentence)
            raise TrainerError(f"{sentence}. Do all ranks see the same artifacts?")
        if not self._alike(self.ranks.shards):
            raise TrainerError(
                f"batch {batch.batch_id}: some ranks have the memory to hold the whole model and others do not, expected "
                "one way of all; choose it: --sharding full or replicate"
            )
        updates = learner.counters.updates
        if not self._alike(updates):
            raise TrainerError(
                f"batch {batch.batch_id}: this rank begins after {updates} updates and another one after more or fewer, "
                "expected one version everywhere. Do all ranks see the same artifacts?"
            )

    def _alike(self, mine: float) -> bool:
        return not self.ranks.any(self.ranks.sum(mine) != mine * self.ranks.world)

    def _check_images(self, batch: TrainBatch, rows: Sequence[TrainRow]) -> None:
        """Ranks that hold shares meet in every layer of every pass: none may see images where another sees none."""
        for objective in {row.objective for row in rows} if self.ranks.shards else ():
            if uneven([row for row in rows if row.objective == objective]):
                raise TrainerError(
                    f"batch {batch.batch_id}: given rows with images and rows without, expected all of one kind with "
                    f"{self.ranks.world} ranks that shard a model; train with --sharding replicate, or with one rank"
                )


def _place(batch: TrainBatch, version: int) -> tuple[str, str, int]:
    return batch.run_id, batch.role, version


def failure(batch: TrainBatch, error: Exception) -> WeightsReady:
    """Return the announcement of a batch that failed."""
    if isinstance(error, torch.OutOfMemoryError):  # of a GPU; the machine's own kills the process
        first_line = str(error).partition("\n")[0]
        error = TrainerError(
            f"the GPU has too little memory for this batch ({batch.num_rows} rows, {batch.num_tokens} tokens): "
            f"{smaller(batch)}, or set activation_checkpointing there ({first_line})"
        )
    elif not isinstance(error, TriforgeError):
        error = TriforgeError(f"{type(error).__name__}: {error}")
    return WeightsReady(
        run_id=batch.run_id, role=batch.role, step=batch.step, version=batch.version, uri="", digest="",
        error=ErrorInfo(kind=error.kind, detail=error.detail, retryable=error.retryable),
    )  # fmt: skip


def smaller(batch: TrainBatch) -> str:
    """Return the advice that lowers the memory of a batch."""
    section = f"trainer.{batch.role}"
    return f"lower {section}.token_budget or {section}.max_tokens"
