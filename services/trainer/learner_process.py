"""The learner as a process: batches in from its stream, weight versions out, one at a time, each counted once.

What trains is `learner.BatchTrainer`, which needs torch. The loop does not: a process that takes the place of a dead one reads
its stream and holds the lease of its batch while torch is still being loaded beside it. So a batch waits for as long as
the lease of the dead lasts, not for as long as libraries take.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from prometheus_client import Counter, Gauge

from triforge.broker import Broker, RedisBroker
from triforge.config import Settings
from triforge.errors import StorageError, TrainerError, TriforgeError, UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.telemetry import about, ids_of, tracing
from triforge.types import ErrorInfo, Handover, TrainBatch, TrainedRole, WeightsReady

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 3  # a batch gets
_BLOCK_S = 1.0
_RETRY_S = 0.5

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


class GivenUp(Exception):  # noqa: N818 (a signal, not a failure)
    """A step was given up because the process is to end; the next one takes it again."""


class Trains(Protocol):
    """What trains a batch; see `learner.BatchTrainer`."""

    def train(
        self, batch: TrainBatch, should_stop: Callable[[], bool] = ...
    ) -> WeightsReady | None:
        """What is to be announced about a batch; None when the run has moved on. Raises GivenUp."""

    def close(self) -> None:
        """Nothing is trained afterwards."""


def failure(batch: TrainBatch, error: TriforgeError) -> WeightsReady:
    """The announcement of a batch that cannot be trained on."""
    return WeightsReady(
        run_id=batch.run_id, role=batch.role, step=batch.step, version=batch.version, uri="", digest="",
        error=ErrorInfo(kind=error.kind, detail=error.detail, retryable=error.retryable),
    )  # fmt: skip


def smaller(batch: TrainBatch) -> str:
    """What makes a batch need less memory."""
    section = "trainer.policy" if batch.role == "policy" else "trainer.reward"
    return f"lower {section}.token_budget or {section}.max_tokens"


class Cursor:
    """The place in a role's stream, and how often the batch after it was begun, in one small file.

    A process that is killed by its batch (out of memory) cannot say so: it notes the attempt before the work, and the
    process after it reads the count. A store that fails never stops the learner: reading a batch again is harmless.

    Args:
        store: where the file lies.
        role: the model that is trained.
    """

    def __init__(self, store: ArtifactStore, role: TrainedRole) -> None:
        self._store, self._name = store, f"checkpoints/cursor-{role}.json"
        self.after = str(self._read().get("after", "0"))

    def begin(self, batch: TrainBatch) -> int:
        """Note an attempt at the batch; returns how many before it nobody has come back from."""
        noted = self._read()
        before = int(noted.get("attempts", 0)) if noted.get("batch_id") == batch.batch_id else 0
        self._write({"batch_id": batch.batch_id, "attempts": before + 1})
        return before

    def end(self) -> None:
        """The process has come to an end of the batch, or is to stop: nothing counts against it."""
        self._write({})

    def move(self, entry: str) -> None:
        """The batch of this entry is done."""
        self.after = entry
        self._write({})

    def _read(self) -> dict[str, Any]:
        try:
            if not self._store.exists(self._name):
                return {}
            return dict(json.loads(self._store.read(self._name)))
        except (TriforgeError, ValueError, TypeError) as error:
            log.warning("%s cannot be read: %s", self._name, error)
            return {}

    def _write(self, more: dict[str, Any]) -> None:
        try:
            self._store.write(self._name, json.dumps({"after": self.after, **more}).encode())
        except TriforgeError as error:
            log.warning("%s is not saved: %s", self._name, error.detail)


class LearnerProcess:
    """Serves one role until `stop`.

    Args:
        broker: streams; when Redis is away the loop waits for it.
        store: the place in the stream.
        role: the model this process trains.
        load: gives what trains; called once, in a thread, when the loop begins.
        handover: how else than by their folders its versions can be had; announced with each of them.
    """

    def __init__(
        self,
        broker: Broker,
        store: ArtifactStore,
        role: TrainedRole,
        *,
        load: Callable[[], Trains],
        handover: Handover | None = None,
    ) -> None:
        self._broker, self._role, self._handover = broker, role, handover
        self._cursor = Cursor(store, role)
        self._load = load
        self._loading: asyncio.Task[Trains] | None = None
        self._stopping = asyncio.Event()
        for result in ("trained", "failed"):
            _BATCHES.labels(role, result)
        _SKIPPED.labels(role)

    def stop(self) -> None:
        """End soon: a step under way is given up and taken again by the next process."""
        self._stopping.set()

    def _trainer(self) -> asyncio.Task[Trains]:
        """What trains, once it is loaded."""
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(self._load))
        return self._loading

    async def close(self) -> None:
        """Let go of what trains."""
        (await self._trainer()).close()

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            Exception: whatever `load` has raised, as soon as it has.
        """
        loading = self._trainer()
        log.info("learner of %s waits for batches after %s", self._role, self._cursor.after)
        while not self._stopping.is_set():
            if loading.done():
                loading.result()  # a process that cannot train is to end at once, not with its first batch
            try:
                entries = await self._broker.read_batches(
                    self._role, self._cursor.after, block_s=_BLOCK_S
                )
            except (UnavailableError, StorageError) as error:
                await self._pause(error)
                continue
            for entry, batch, parent in entries:
                if batch is None:
                    log.error("entry %s is no batch of this version of triforge: skipped", entry)
                elif not await self._serve(batch, parent):
                    return
                self._cursor.move(entry)

    async def _pause(self, error: TriforgeError | None = None) -> None:
        if error is not None:
            log.warning("waiting: %s", error.detail)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), _RETRY_S)

    async def _serve(self, batch: TrainBatch, parent: str) -> bool:
        """Handle one batch, sent in the trace `parent`, to its end; False if `stop` came before.

        What is interrupted by a failure is done again from the beginning: a version that is published is found so.
        """
        while not self._stopping.is_set():
            try:
                async with self._broker.lease(f"learner:{batch.run_id}:{batch.role}") as mine:
                    ready = await self._train(batch, parent) if mine else None
                if mine:
                    if ready is not None:
                        ready = ready.model_copy(update={"handover": self._handover})
                        await self._broker.announce(ready)
                    return True
                await self._pause()
            except GivenUp:
                return False
            except (UnavailableError, StorageError) as error:
                await self._pause(error)
        return False

    async def _train(self, batch: TrainBatch, parent: str) -> WeightsReady | None:
        side = "policy" if batch.role == "policy" else "reward"
        with about(**ids_of(batch), **{side: batch.version}):
            trainer = await self._trainer()
            before = self._cursor.begin(batch)
            try:
                if before >= MOST_ATTEMPTS:
                    ready: WeightsReady | None = failure(batch, TrainerError(
                        f"the learner ended {before} times while training this batch ({batch.num_rows} rows, "
                        f"{batch.num_tokens} tokens); its log says more. Without a word there it was most likely for want "
                        f"of memory: {smaller(batch)}"
                    ))  # fmt: skip
                else:
                    with tracing.served("learner step", parent, "consumer"):
                        ready = await asyncio.to_thread(trainer.train, batch, self._stopping.is_set)
            finally:
                self._cursor.end()
        if ready is not None:
            _measure(ready)
        return ready


def _measure(ready: WeightsReady) -> None:
    _BATCHES.labels(ready.role, "failed" if ready.error else "trained").inc()
    if ready.error or ready.report is None:
        return
    metrics = ready.report.metrics
    _SKIPPED.labels(ready.role).inc(metrics.get("skipped_updates", 0.0))
    if "tokens_per_s" in metrics:
        _SPEED.labels(ready.role).set(metrics["tokens_per_s"])
    _CHECKPOINT.labels(ready.role).set_to_current_time()


async def serve_learner(
    role: TrainedRole,
    settings: Settings,
    store: ArtifactStore,
    *,
    load: Callable[[], Trains],
    api: Callable[[], AbstractAsyncContextManager[Handover]] | None = None,
) -> None:
    """Run the first rank of a learner until SIGTERM or SIGINT.

    Args:
        role: the model it trains.
        settings: where Redis is.
        store: rows, weights, checkpoints and the place in the stream.
        load: gives what trains.
        api: opens an API at which the policy services get its weights; None if they read folders.
    """
    broker = RedisBroker(settings.redis_url, lease_s=settings.lease_s)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(broker.close)
        handover = await stack.enter_async_context(api()) if api else None
        process = LearnerProcess(broker, store, role, load=load, handover=handover)
        events: Any = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            events.add_signal_handler(name, process.stop)
        await process.run()
        await process.close()


# ---- memory of a process that trains on a CPU ----

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # numbers of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Have freed memory kept for what is allocated next; returns whether this C library can.

    A step takes and frees gigabytes in blocks that the C library would fetch from the system, page by page, each time.
    Threads that have allocated before keep places of their own, so this is for the beginning of a process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))
    done = [mallopt(option, value) == 1 for option, value in wanted]
    return all(done)


def give_back_memory() -> None:
    """Hand to the system what is free now: a learner that waits needs its weights and its optimiser's state alone."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
