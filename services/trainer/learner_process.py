"""The learner as a process: batches in from its stream, weight versions out, one at a time, each at most once.

What is done with a batch is in `answers`, which needs torch. The loop knows none: a process that takes the place of a dead
one reads its stream and holds the lease of its batch while torch is still being loaded beside it. So a batch is missed for
as long as the lease of the dead lasts, not for as long as libraries take.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from services.trainer import learner_metrics as metrics
from triforge.broker import Broker, RedisBroker
from triforge.config import Settings
from triforge.errors import StorageError, TriforgeError, UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.telemetry import about, ids_of, tracing
from triforge.types import Handover, TrainBatch, TrainedRole, WeightsReady

log = logging.getLogger(__name__)

_BLOCK_S = 1.0
_RETRY_S = 0.5


class GivenUp(Exception):  # noqa: N818 (a signal, not a failure)
    """A step was given up because the process is to end; the next one takes it again."""


class Trains(Protocol):
    """What answers a batch; see `answers.Answers`."""

    def answer(
        self, batch: TrainBatch, should_stop: Callable[[], bool] = ...
    ) -> WeightsReady | None:
        """What is to be announced about a batch; None when the run has moved on. Raises GivenUp."""

    def dismiss(self) -> None:
        """Nothing is trained afterwards."""


class LearnerLoop:
    """Serves one role until told to stop.

    Args:
        wire: streams; when Redis is away the loop waits for it.
        store: the place in the stream.
        role: the model this process trains.
        load: gives what answers batches; called once, in a thread, when the loop begins.
        handover: how else than by their folders its versions can be had; told with each of them.
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
        self._broker, self._store, self._role = broker, store, role
        self._load = load
        self._loading: asyncio.Task[Trains] | None = None
        self._handover = handover
        self._cursor_name = f"checkpoints/cursor-{role}.json"
        self._stopping = asyncio.Event()
        metrics.begin(role)

    def stop(self) -> None:
        """End soon: a step under way is given up and taken again by the next process."""
        self._stopping.set()

    def _answers(self) -> asyncio.Task[Trains]:
        """What answers batches, once it is loaded."""
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(self._load))
        return self._loading

    async def dismiss(self) -> None:
        """Let go of what answers; nothing is trained afterwards."""
        (await self._answers()).dismiss()

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            Exception: whatever `load` has raised, as soon as it has.
        """
        loading = self._answers()
        cursor = self._read_cursor()
        log.info("learner of %s waits for batches after %s", self._role, cursor)
        while not self._stopping.is_set():
            if loading.done():
                loading.result()  # a process that cannot train is to end at once, not with its first batch
            try:
                entries = await self._broker.read_batches(self._role, cursor, block_s=_BLOCK_S)
            except (UnavailableError, StorageError) as error:
                log.warning("waiting: %s", error.detail)
                await self._pause()
                continue
            for entry, batch in entries:
                if batch is None:
                    log.error("entry %s is no batch of this version of triforge: skipped", entry)
                elif not await self._serve(batch, entry.parent):
                    return
                cursor = entry
                self._write_cursor(cursor)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), _RETRY_S)

    async def _serve(self, batch: TrainBatch, above: str) -> bool:
        """Handle one batch, sent in the trace `above`, to its end; False when told to stop before."""
        ready: WeightsReady | None = None
        answered = False
        while not self._stopping.is_set():
            try:
                if not answered:
                    async with self._broker.lease(f"learner:{batch.run_id}:{batch.role}") as mine:
                        if mine:
                            side = "policy" if batch.role == "policy" else "reward"
                            with about(**ids_of(batch), **{side: batch.version}):
                                trains = await self._answers()
                                with tracing.served("learner step", above, "consumer"):
                                    ready = await asyncio.to_thread(
                                        trains.answer, batch, self._stopping.is_set
                                    )
                            answered = True
                if answered:
                    if ready is not None:
                        told = ready.model_copy(update={"handover": self._handover})
                        await self._broker.announce_weights(told)
                    return True
            except GivenUp:
                return False
            except (UnavailableError, StorageError) as error:
                log.warning("waiting: %s", error.detail)
            await self._pause()
        return False

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
        load: gives what answers batches.
        api: opens an API at which the policy services get its weights; None if they read folders.
    """
    broker = RedisBroker(settings.redis_url, lease_s=settings.lease_s)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(broker.close)
        handover = await stack.enter_async_context(api()) if api else None
        loop = LearnerLoop(broker, store, role, load=load, handover=handover)
        events: Any = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            events.add_signal_handler(name, loop.stop)
        await loop.run()
        await loop.dismiss()
