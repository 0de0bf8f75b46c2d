"""The learner as a process: batches in from its stream, weight versions out, one at a time, each at most once.

A delivered batch may be new, old, or one that was trained before a crash:

| version batch.version + 1 of the run   | what happens                           |
|----------------------------------------|----------------------------------------|
| is not published, nor any newer one    | train, publish, announce               |
| is published                           | announce again                         |
| was pruned, newer ones are published   | nothing: the run has moved on          |

A failure is announced as well (`WeightsReady.error`), so that the conductor stops the run with the reason. So is a batch
that three processes have begun and none has come back from.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from typing import Any

import torch

from services.trainer.broadcasts.serving import broadcasts
from services.trainer.learner import metrics
from services.trainer.learner.attempts import MOST, Attempts
from services.trainer.learner.checkpoint import Shelf
from services.trainer.learner.crew import Crew
from services.trainer.learner.learner import Interrupted, Learner
from services.trainer.objectives.train_settings import TrainSettings
from services.trainer.weights.sharding import Ranks
from triforge.config import Settings
from triforge.errors import ConfigError, StorageError, TrainerError, TriforgeError, UnavailableError
from triforge.messages import ErrorInfo, Handover, StepReport, TrainBatch, TrainedRole, WeightsReady
from triforge.queues import Wire
from triforge.store.artifacts import ArtifactStore
from triforge.watching import about, ids_of

log = logging.getLogger(__name__)

_BLOCK_S = 1.0
_RETRY_S = 0.5


class LearnerLoop:
    """Serves one role until told to stop.

    Args:
        wire: streams; when Redis is away the loop waits for it.
        store: rows, weights, checkpoints and the place in the stream.
        role: the model this process trains.
        device: where it trains; the CPU by default.
        handover: how else than by their folders its versions can be had; told with each of them.
        ranks: the processes that train together, of which this is the first; it alone by default.
    """

    def __init__(
        self,
        wire: Wire,
        store: ArtifactStore,
        role: TrainedRole,
        *,
        device: torch.device | None = None,
        handover: Handover | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._wire, self._store, self._role = wire, store, role
        self._crew = Crew(store, ranks or Ranks(device or torch.device("cpu")), device)
        self._handover = handover
        self._cursor_name = f"checkpoints/cursor-{role}.json"
        self._attempts = Attempts(store, role)
        self._stopping = asyncio.Event()
        metrics.begin(role)

    def dismiss(self) -> None:
        """Let the other ranks go; nothing is trained afterwards."""
        self._crew.dismiss()

    def stop(self) -> None:
        """End soon: a step under way is given up and taken again by the next process."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop`."""
        cursor = self._read_cursor()
        log.info("learner of %s waits for batches after %s", self._role, cursor)
        while not self._stopping.is_set():
            try:
                entries = await self._wire.read_batches(self._role, cursor, block_s=_BLOCK_S)
            except (UnavailableError, StorageError) as error:
                log.warning("waiting: %s", error.detail)
                await self._pause()
                continue
            for entry, batch in entries:
                if batch is None:
                    log.error("entry %s is no batch of this version of triforge: skipped", entry)
                elif not await self._serve(batch):
                    return
                cursor = entry
                self._write_cursor(cursor)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), _RETRY_S)

    async def _serve(self, batch: TrainBatch) -> bool:
        """Handle one batch to its end; False when told to stop before."""
        ready: WeightsReady | None = None
        answered = False
        while not self._stopping.is_set():
            try:
                if not answered:
                    async with self._wire.lease(f"learner:{batch.run_id}:{batch.role}") as mine:
                        if mine:
                            side = "policy" if batch.role == "acts" else "reward"
                            with about(**ids_of(batch), **{side: batch.version}):
                                ready = await asyncio.to_thread(self.answer, batch)
                            answered = True
                if answered:
                    if ready is not None:
                        told = ready.model_copy(update={"handover": self._handover})
                        await self._wire.announce_weights(told)
                    return True
            except Interrupted:
                return False
            except (UnavailableError, StorageError) as error:
                log.warning("waiting: %s", error.detail)
            await self._pause()
        return False

    def answer(self, batch: TrainBatch) -> WeightsReady | None:
        """What is to be announced about a batch; None when the run has moved on. Blocks while it trains.

        Raises:
            Interrupted: told to stop; nothing of the step is kept.
        """
        try:
            ready = self._train_once(batch)
        except Interrupted:
            self._crew.drop()
            self._attempts.clear()
            raise
        except TriforgeError as error:
            log.exception("batch %s", batch.batch_id)
            ready = self._failed(
                batch, ErrorInfo(kind=error.kind, detail=error.detail, retryable=error.retryable)
            )
        except (
            Exception
        ) as error:  # the border: an unforeseen fault fails this run, not the process
            log.exception("batch %s", batch.batch_id)
            if self._crew.ranks.world > 1:
                raise  # the other ranks wait in the middle of a step; torchrun ends them with this one
            ready = self._failed(
                batch, ErrorInfo(kind="internal", detail=f"{type(error).__name__}: {error}")
            )
        self._attempts.clear()
        return ready

    def _failed(self, batch: TrainBatch, error: ErrorInfo) -> WeightsReady:
        self._crew.drop()
        metrics.BATCHES.labels(batch.role, "failed").inc()
        return WeightsReady(
            run_id=batch.run_id,
            role=batch.role,
            step=batch.step,
            version=batch.version,
            uri="",
            digest="",
            error=error,
        )

    def _train_once(self, batch: TrainBatch) -> WeightsReady | None:
        shelf = Shelf(self._store, batch.run_id, batch.role)
        target = batch.version + 1
        published = shelf.ready(target)
        if published is not None:
            log.info("batch %s: version %d is published already", batch.batch_id, target)
            return published
        newest = shelf.newest()
        if newest is not None and newest > target:
            return None
        self._begin(batch)
        settings = TrainSettings.of(batch)
        learner, report = self._train(shelf, batch)
        ready = shelf.publish(learner, batch, report, keep=settings.keep)
        self._crew.keep(batch, learner)
        metrics.trained(batch.role, report)
        log.info("batch %s: version %d, %s", batch.batch_id, ready.version, _short(report.metrics))
        return ready

    def _train(self, shelf: Shelf, batch: TrainBatch) -> tuple[Learner, StepReport]:
        return self._crew.train(shelf, batch, self._stopping.is_set)

    def _begin(self, batch: TrainBatch) -> None:
        """Note the attempt.

        Raises:
            TrainerError: enough processes have ended at this batch.
        """
        ended = self._attempts.count(batch)
        if ended >= MOST:
            section = "trainer.policy" if batch.role == "acts" else "trainer.reward"
            raise TrainerError(
                f"the learner ended {ended} times while training this batch ({batch.num_rows} rows, {batch.num_tokens} "
                f"tokens); its log says more. Without a word there it was most likely for want of memory: lower "
                f"{section}.token_budget or {section}.max_tokens"
            )
        self._attempts.begin(batch)

    def _read_cursor(self) -> str:
        if not self._store.exists(self._cursor_name):
            return "0"
        try:
            return str(json.loads(self._store.read(self._cursor_name))["after"])
        except (ValueError, KeyError, TypeError):
            log.warning(
                "%s cannot be read; the stream is read from its beginning", self._cursor_name
            )
            return "0"

    def _write_cursor(self, cursor: str) -> None:
        try:
            self._store.write(self._cursor_name, json.dumps({"after": cursor}).encode())
        except (
            TriforgeError
        ) as error:  # reading a batch again is harmless, so this must not end the learner
            log.warning("the place in the stream is not saved: %s", error.detail)


def _short(metrics: dict[str, float]) -> str:
    shown = ("loss", "grad_norm", "tokens_per_s", "seconds")
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in shown if name in metrics)


async def serve_learner(role: TrainedRole, settings: Settings, ranks: Ranks) -> None:
    """Run the first rank of a learner until SIGTERM or SIGINT.

    Raises:
        ConfigError: several ranks cannot hand weights over by broadcast.
    """
    if ranks.world > 1 and settings.handover == "distributed":
        raise ConfigError(
            f"TRIFORGE_HANDOVER: given distributed with {ranks.world} ranks, expected folders: only one rank can broadcast"
        )
    wire = Wire(settings.redis_url, lease_s=settings.lease_s)
    store = ArtifactStore(settings.artifacts_url)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(wire.close)
        handover = None
        if settings.handover == "distributed":
            handover = await stack.enter_async_context(broadcasts(store, settings, ranks.device))
        loop = LearnerLoop(wire, store, role, device=ranks.device, handover=handover, ranks=ranks)
        events: Any = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            events.add_signal_handler(name, loop.stop)
        await loop.run()
        loop.dismiss()
