"""The learner as a process: batches in from its stream, weight versions out, one at a time, each counted once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from typing import Any, Final

from prometheus_client import Counter, Gauge

from services.trainer.learner.batch_trainer import BatchTrainer, failure, smaller
from services.trainer.learner.parallel.ranks import Interrupted
from triforge.broker import Broker, RedisBroker
from triforge.config import Settings
from triforge.errors import StorageError, TrainerError, TriforgeError, UnavailableError
from triforge.retry import Attempts, RetryPolicy
from triforge.store.artifacts import ArtifactStore
from triforge.telemetry import about, ids_of, tracing
from triforge.types import TrainBatch, TrainedRole, WeightsReady

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 3  # a batch gets
_BLOCK_S = 1.0
_AWAY = RetryPolicy(first_s=0.5, longest_s=2.0, retry_on=lambda _: True)

_BATCHES: Final = Counter(
    "triforge_trainer_learner_batches", "Batches that a learner answered, by result.", ["role", "result"]
)  # fmt: skip
_SKIPPED: Final = Counter(
    "triforge_trainer_learner_skipped_updates", "Updates that this learner left out.", ["role"]
)
_SPEED: Final = Gauge(
    "triforge_trainer_learner_tokens_per_second", "Speed of the last batch.", ["role"]
)
_CHECKPOINT: Final = Gauge(
    "triforge_trainer_learner_checkpoint_timestamp_seconds",
    "When this learner last wrote a checkpoint and weights.",
    ["role"],
)


class Cursor:
    """The place in a role's stream, and how often the batch after it was begun, in one small file.

    A process that its batch kills (out of memory) cannot report it: it records the attempt before the work, and the next
    process reads the count. A store that fails never stops the learner, as reading a batch again is harmless. Writes run in
    threads, so that the event loop renews leases meanwhile.
    """

    def __init__(self, store: ArtifactStore, role: TrainedRole) -> None:
        self._store, self._name = store, f"checkpoints/cursor-{role}.json"
        self.after = str(self._read().get("after", "0"))

    def begin(self, batch: TrainBatch) -> int:
        """Record an attempt at the batch; return how many earlier attempts killed their process."""
        noted = self._read()
        before = int(noted.get("attempts", 0)) if noted.get("batch_id") == batch.batch_id else 0
        self._write(batch_id=batch.batch_id, attempts=before + 1)
        return before

    def end(self, entry: str | None = None) -> None:
        """Clear the attempt, as the process survived it; with its `entry` the batch is done."""
        self.after = entry or self.after
        self._write()

    def _read(self) -> dict[str, Any]:
        try:
            if not self._store.exists(self._name):
                return {}
            return dict(json.loads(self._store.read(self._name)))
        except (TriforgeError, ValueError, TypeError) as error:
            log.warning("%s cannot be read: %s", self._name, error)
            return {}

    def _write(self, **attempt: object) -> None:
        try:
            self._store.write(self._name, json.dumps({"after": self.after, **attempt}).encode())
        except TriforgeError as error:
            log.warning("%s is not saved: %s", self._name, error.detail)


class LearnerProcess:
    """Serves one role until `stop`; waits for a broker or store that is away.

    `handover` names the ways to get a version other than its folder; it is announced with each version.
    """

    def __init__(
        self,
        broker: Broker,
        store: ArtifactStore,
        role: TrainedRole,
        trainer: BatchTrainer,
        *,
        handover: tuple[str, ...] | None = None,
    ) -> None:
        self._broker, self._role, self._trainer = broker, role, trainer
        self._handover, self._cursor = handover, Cursor(store, role)
        self._stopping = asyncio.Event()
        for result in ("trained", "failed"):
            _BATCHES.labels(role, result)
        _SKIPPED.labels(role)

    def stop(self) -> None:
        """End soon: a step under way is given up and taken again by the next process."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop`.

        A batch that a failure interrupts starts again; a version that was published already is only announced again.
        """
        log.info("learner of %s waits for batches after %s", self._role, self._cursor.after)
        attempts = Attempts(_AWAY)
        while not self._stopping.is_set():
            try:
                await self._next_batches()
                attempts.succeeded()
            except Interrupted:
                return
            except (UnavailableError, StorageError) as error:
                log.warning("waiting: %s", error.detail)
                await attempts.failed(error)

    async def _next_batches(self) -> None:
        after = self._cursor.after
        entries = await self._broker.read_batches(self._role, after, block_s=_BLOCK_S)
        for entry, batch, parent in entries:
            if batch is None:
                log.error("entry %s is no batch of this version of triforge: skipped", entry)
            else:
                await self._serve(batch, parent)
            await asyncio.to_thread(self._cursor.end, entry)

    async def _serve(self, batch: TrainBatch, parent: str) -> None:
        """Train one batch, sent in the trace `parent`, and announce the result."""
        async with self._broker.lease(f"learner:{batch.run_id}:{batch.role}") as mine:
            if not mine:
                raise UnavailableError(f"batch {batch.batch_id}: another process trains this model")
            with (
                about(**({batch.role: str(batch.version)} | ids_of(batch))),
                tracing.served("learner step", parent, "consumer"),
            ):
                ready = await asyncio.to_thread(self._train, batch)
        if ready is not None:
            _measure(ready)
            ready = ready.model_copy(update={"handover": self._handover})
            await self._broker.announce(ready)

    def _train(self, batch: TrainBatch) -> WeightsReady | None:
        before = self._cursor.begin(batch)
        try:
            if before < MOST_ATTEMPTS:
                return self._trainer.train(batch, self._stopping.is_set)
        finally:
            self._cursor.end()
        return failure(batch, TrainerError(
            f"the learner ended {before} times while training this batch ({batch.num_rows} rows, {batch.num_tokens} tokens); "
            f"its log says more. Without a word there it was most likely for want of memory: {smaller(batch)}"
        ))  # fmt: skip


def _measure(ready: WeightsReady) -> None:
    _BATCHES.labels(ready.role, "failed" if ready.error else "trained").inc()
    if ready.error:
        return
    metrics = ready.metrics
    _SKIPPED.labels(ready.role).inc(metrics.get("skipped_updates", 0.0))
    if "tokens_per_s" in metrics:
        _SPEED.labels(ready.role).set(metrics["tokens_per_s"])
    _CHECKPOINT.labels(ready.role).set_to_current_time()


async def serve_learner(
    role: TrainedRole,
    settings: Settings,
    store: ArtifactStore,
    trainer: BatchTrainer,
    handover: tuple[str, ...] | None = None,
) -> None:
    """Run the first rank of a learner until SIGTERM or SIGINT; `handover` as in `LearnerProcess`."""
    broker = RedisBroker(settings.redis_url, lease_s=settings.lease_s)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(broker.close)
        process = LearnerProcess(broker, store, role, trainer, handover=handover)
        events = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            events.add_signal_handler(name, process.stop)
        await process.run()
    trainer.close()
