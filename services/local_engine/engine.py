"""The bridge between asyncio and the scheduler's thread.

Requests wait on futures of their own event loop; the thread steps the scheduler, and runs commands (pause, swap, ...)
between two steps; urgent ones stop the forward pass that runs, and its step is repeated later. Weights are read and verified outside the thread (`updates.py`), so that decoding goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from services.local_engine.detokenize import TextCodec
from services.local_engine.images import Media, Seen, place
from services.local_engine.intake import Intake
from services.local_engine.lora import Adapter
from services.local_engine.model import Model
from services.local_engine.request import Prompt
from services.local_engine.results import Results
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence
from services.local_engine.tickets import Ticket, deliver, post
from triforge.errors import InputError, UnavailableError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class BusyError(UnavailableError):
    """More requests wait than may; the same request may be sent again later."""

    status = 429


@dataclass(frozen=True, slots=True)
class Swapped:
    """What a swap of weights met: `running` sequences, and whether the cache could be `flushed`."""

    running: int
    flushed: bool


class Engine:
    """Serves one model.

    Args:
        model: the model, weights loaded.
        config: its `config.json`.
        codec: its tokenizer.
        folder: where it came from; reported, and replaced when weights are updated.
        limits: how much runs at once.
        version: weight version of the loaded weights.
        seed: makes requests without a seed reproducible as long as their order is; None draws one.
    """

    def __init__(
        self,
        model: Model,
        config: dict[str, Any],
        codec: TextCodec,
        folder: Path,
        *,
        limits: Limits | None = None,
        version: str = "default",
        seed: int | None = None,
    ) -> None:
        self.codec = codec
        self.config = config
        self.folder: Path = folder
        self.limits = limits if limits is not None else Limits()
        self._scheduler = Scheduler(model, self.limits, version)
        self.model = model
        self.adapters: dict[str, Adapter] = {}
        self._intake = Intake(
            codec,
            model.vocab_size,
            self.longest,
            seed,
            context=model.context_length,
            adapters=self.adapters,
        )
        self._commands: deque[Callable[[], object]] = deque()
        self._posting = threading.Lock()  # a command and its halt come together
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._tickets: dict[str, Ticket] = {}
        self._in_flight = 0
        self._draining = False
        self.results = Results(codec)

    @property
    def version(self) -> str:
        """The weight version that serves now."""
        return self._scheduler.version

    @property
    def paused(self) -> bool:
        """Whether generation is paused."""
        return self._scheduler.paused

    @property
    def longest(self) -> int:
        """Tokens that one request may use, prompt and output together."""
        return min(self.model.context_length, self.limits.max_total_tokens)

    @property
    def in_flight(self) -> int:
        """Sequences that were taken on and not answered yet."""
        return self._in_flight

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether it takes new requests."""
        return self.alive and not self._draining

    def drain(self) -> None:
        """Take no new requests; those that are in flight go on."""
        self._draining = True

    def load(self) -> dict[str, int]:
        """How busy it is, in sequences and in tokens (promised to those that run, and asked for by all)."""
        s = self._scheduler
        return {
            "num_running_reqs": len(s.running),
            "num_waiting_reqs": len(s.waiting),
            "num_used_tokens": s.reserved,
            "num_total_tokens": s.reserved + sum(len(q.ids) + q.max_new for q in tuple(s.waiting)),
            "cached_prefix_tokens": s.prefixes.tokens,
        }

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="local-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the present step; open requests end as aborted."""
        if self._thread is None:
            return
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        scheduler = self._scheduler
        while not self._stopping:
            self._wake.clear()
            while (command := self._next_command()) is not None:
                command()
            try:
                finished = scheduler.step()
            except Exception as error:  # noqa: BLE001 - one bad batch must not end the engine
                _log.exception("a step failed; the requests in flight are aborted")
                message = f"The engine failed: {error}"
                scheduler.abort(lambda _: True, message)
                finished = scheduler.take_finished()
                for seq in finished:
                    seq.abort(message, 500, "InternalServerError")
            if finished:
                deliver(finished)
            if scheduler.idle and not self._commands and not self._stopping:
                self._wake.wait()
        scheduler.abort(lambda _: True, "The engine stopped.")
        deliver(scheduler.take_finished())

    def _next_command(self) -> Callable[[], object] | None:
        """The oldest command. All are done before the next pass, so none of them has to stop it."""
        with self._posting:
            self._scheduler.halt.clear()
            return self._commands.popleft() if self._commands else None

    # ---- requests -------------------------------------------------------------------------------------------------

    def placed(self, ids: list[int], seen: Listing[Seen]) -> tuple[list[int], Media | None]:
        """A prompt with all tokens of its images, and these; one without images as it is."""
        sight = self.model.sight
        return (ids, None) if sight is None or not seen else place(sight, ids, seen)

    def build(self, prompt: Prompt) -> list[Sequence]:
        """The n sequences of a prompt; see `Intake.build`."""
        return self._intake.build(prompt)

    def _enter(self, sequences: list[Sequence], progress: asyncio.Queue[None] | None) -> Ticket:
        if self._draining:
            raise UnavailableError(
                "the engine is shutting down and takes no new requests", retry_after_s=5.0
            )
        service = self.limits.max_running + self.limits.max_queued
        if self._in_flight + len(sequences) > service:
            raise BusyError(
                f"the request queue is full ({self._in_flight} in flight, {service} allowed); "
                "retry later or raise --max-queued-requests",
                retry_after_s=1.0,
            )
        rids = {seq.prompt.rid for seq in sequences}
        for rid in rids:
            if rid in self._tickets:
                raise InputError(f"rid {rid!r} is in use by a request that has not ended")
        ticket = Ticket(sequences, progress)
        self._tickets |= dict.fromkeys(rids, ticket)
        self._in_flight += len(sequences)
        self._post_command(lambda: self._scheduler.submit(sequences))
        return ticket

    def _leave(self, ticket: Ticket) -> None:
        self._in_flight -= len(ticket.sequences)
        for seq in ticket.sequences:
            self._tickets.pop(seq.prompt.rid, None)

    async def generate(self, sequences: list[Sequence]) -> None:
        """Wait until all sequences have ended. When the caller is cancelled they are aborted.

        Raises:
            UnavailableError: the queue is full.
            InputError: a rid is in use.
        """
        ticket = self._enter(sequences, None)
        try:
            await ticket.future
        finally:
            self._close(ticket)

    def stream(self, sequences: list[Sequence]) -> AsyncGenerator[None, None]:
        """Start at once; the generator yields whenever there may be new tokens, and once more when all have ended.

        Raises:
            UnavailableError: the queue is full.
            InputError: a rid is in use.
        """
        progress: asyncio.Queue[None] = asyncio.Queue()
        return self._updates(self._enter(sequences, progress), progress)

    async def _updates(
        self, ticket: Ticket, progress: asyncio.Queue[None]
    ) -> AsyncGenerator[None, None]:
        ticket.future.add_done_callback(lambda _: progress.put_nowait(None))
        try:
            while not ticket.future.done():
                await progress.get()
                while not progress.empty():
                    progress.get_nowait()
                yield
        finally:
            self._close(ticket)

    def _close(self, ticket: Ticket) -> None:
        if not ticket.future.done() or ticket.future.cancelled():
            self._post_command(lambda: self._abort_where(lambda seq: seq.owner is ticket))
        self._leave(ticket)

    # ---- commands -------------------------------------------------------------------------------------------------

    def _post_command(self, command: Callable[[], object], *, urgent: bool = False) -> None:
        with self._posting:
            self._commands.append(command)
            if urgent:
                self._scheduler.halt.set()
        self._wake.set()

    async def call(self, function: Callable[[], _T], *, urgent: bool = False) -> _T:
        """Run `function` in the thread, between two steps; `urgent` does not wait for the end of a forward pass."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def settle(result: _T | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def command() -> None:
            result, failure = None, None
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - handed to the caller
                failure = error
            post(loop, lambda: settle(result, failure))

        self._post_command(command, urgent=urgent)
        return await future

    def _abort_where(self, chosen: Callable[[Sequence], bool]) -> int:
        return self._scheduler.abort(chosen, "Aborted")

    async def pause(self, mode: str) -> None:
        """Stop generating: `abort`, `retract` or `in_place` (see `Scheduler.pause`)."""
        await self.call(lambda: self._scheduler.pause(mode), urgent=True)

    async def resume(self) -> None:
        """Go on generating."""
        await self.call(self._scheduler.resume)

    async def abort(self, rid: str | None) -> int:
        """Abort the request named `rid`, or all of them when it is None; returns how many sequences ended."""
        return await self.call(
            lambda: self._abort_where(lambda seq: rid is None or rid in (seq.rid, seq.prompt.rid)),
            urgent=rid is None,
        )

    async def flush(self) -> bool:
        """Empty the prefix cache; False when requests are running."""
        return await self.call(self._scheduler.flush)

    async def forget(self, adapter: Adapter) -> None:
        """Drop the cached prefixes of an adapter that was unloaded; sequences that use it go on with it."""
        await self.call(lambda: self._scheduler.prefixes.forget(adapter))

    async def rename(self, version: str) -> None:
        """Set the weight version without changing weights."""
        await self.call(lambda: self._scheduler.rename(version))

    async def swap(
        self, tensors: dict[str, Tensor], version: str | None, *, abort: bool, folder: Path | None
    ) -> Swapped:
        """Serve verified weights, all or some, from the next token on.

        Args:
            tensors: the weights.
            version: their version; None keeps the name of the present one.
            abort: end all requests first.
            folder: where all of them come from, if from a folder.
        """

        def work() -> Swapped:
            scheduler = self._scheduler
            if abort:
                self._abort_where(lambda _: True)
            running, held = len(scheduler.running), scheduler.held
            scheduler.swap(tensors, self.version if version is None else version)
            if folder is not None:
                self.folder = folder
            return Swapped(running, flushed=not held)

        return await self.call(work, urgent=True)


def new_rid() -> str:
    """A request id for a request that brought none."""
    return uuid.uuid4().hex
