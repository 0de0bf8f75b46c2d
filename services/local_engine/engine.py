"""The bridge between asyncio and the scheduler's thread.

Requests wait on futures of their own event loop; the thread steps the scheduler, and runs commands (pause, swap, ...)
between two steps. Weights are read and verified outside the thread, so that decoding goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import random
import threading
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from services.local_engine.detokenize import StopStrings, TextCodec
from services.local_engine.grammar import GrammarCompiler
from services.local_engine.model import Model, stage_weights
from services.local_engine.request import Prompt
from services.local_engine.sampler import stream_seed
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence
from services.local_engine.weights import checksums
from triforge.errors import InputError, UnavailableError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class _Ticket:
    """Sequences that were asked for together, and the future of who waits for them."""

    __slots__ = ("future", "loop", "open", "progress", "sequences")

    def __init__(self, sequences: list[Sequence], progress: asyncio.Queue[None] | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.sequences = sequences
        self.open = len(sequences)
        self.progress = progress

    def close_one(self) -> None:
        """Called in the loop when one of the sequences has ended."""
        self.open -= 1
        if self.open == 0 and not self.future.done():
            self.future.set_result(None)


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
        self.folder = folder
        self.limits = limits if limits is not None else Limits()
        self._scheduler = Scheduler(model, self.limits, version)
        self._model = model
        self._grammars = GrammarCompiler(codec, model.vocab_size)
        self._random = random.Random(seed)  # noqa: S311 - sampling, not secrets
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._tickets: dict[str, _Ticket] = {}
        self._in_flight = 0
        self._update = asyncio.Lock()

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
        return min(self._model.context_length, self.limits.max_total_tokens)

    def load(self) -> dict[str, int]:
        """How busy it is: running and waiting sequences, cached prefix tokens."""
        s = self._scheduler
        return {
            "num_running_reqs": len(s.running),
            "num_waiting_reqs": len(s.waiting),
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
            while self._commands:
                self._commands.popleft()()
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
                self._deliver(finished)
            if scheduler.idle and not self._commands and not self._stopping:
                self._wake.wait()
        scheduler.abort(lambda _: True, "The engine stopped.")
        self._deliver(scheduler.take_finished())

    @staticmethod
    def _deliver(finished: list[Sequence]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        for seq in finished:
            by_loop.setdefault(seq.owner.loop, []).append(seq.owner.close_one)
        for loop, calls in by_loop.items():
            _post(loop, functools.partial(_call_all, calls))

    # ---- requests -------------------------------------------------------------------------------------------------

    def build(self, prompt: Prompt) -> list[Sequence]:
        """The n sequences of a prompt.

        Raises:
            InputError: the prompt is empty, holds an unknown id, does not fit, or its grammar is invalid.
        """
        params = prompt.params
        max_new = self._check(prompt)
        end_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            end_ids |= self.codec.end_ids
        seed = params.sampling_seed
        if seed is None:
            seed = self._random.getrandbits(63)
        found = []
        for sample in range(params.n):
            rid = prompt.rid if params.n == 1 else f"{prompt.rid}_{sample}"
            seq = Sequence(prompt, rid, stream_seed(seed, sample), max_new, end_ids)
            if params.stop:
                seq.stops = StopStrings(
                    self.codec, params.stop, skip_special=params.skip_special_tokens
                )
            seq.grammar = self._grammars.start(params)
            if params.min_new_tokens > 0 and end_ids:
                seq.ban_until_min = torch.zeros(self._model.vocab_size, dtype=torch.bool)
                seq.ban_until_min[[i for i in end_ids if 0 <= i < self._model.vocab_size]] = True
            seq.watch()
            found.append(seq)
        return found

    def _check(self, prompt: Prompt) -> int:
        ids, vocab = prompt.ids, self._model.vocab_size
        if not ids:
            raise InputError("the prompt is empty; expected at least one token")
        if min(ids) < 0 or max(ids) >= vocab:
            bad = next(i for i in ids if not 0 <= i < vocab)
            raise InputError(f"token id {bad} is not in the vocabulary of {vocab} tokens")
        asked = prompt.params.max_new_tokens
        max_new = max(self.longest - len(ids), 0) if asked is None else asked
        if len(ids) + max_new <= self.longest and len(ids) <= self.longest:
            return max_new
        if self.longest == self._model.context_length:
            limit = f"the model's context length of {self.longest} tokens"
        else:
            limit = f"--max-total-tokens {self.longest}"
        raise InputError(
            f"the input ({len(ids)} tokens) plus max_new_tokens ({max_new}) exceeds {limit}; "
            "shorten the prompt or lower max_new_tokens"
        )

    def _enter(self, sequences: list[Sequence], progress: asyncio.Queue[None] | None) -> _Ticket:
        room = self.limits.max_running + self.limits.max_queued
        if self._in_flight + len(sequences) > room:
            raise UnavailableError(
                f"the request queue is full ({self._in_flight} in flight, {room} allowed); "
                "retry later or raise --max-queued-requests",
                retry_after_s=1.0,
            )
        rids = {seq.prompt.rid for seq in sequences}
        for rid in rids:
            if rid in self._tickets:
                raise InputError(f"rid {rid!r} is in use by a request that has not ended")
        ticket = _Ticket(sequences, progress)
        self._tickets |= dict.fromkeys(rids, ticket)
        self._in_flight += len(sequences)
        for seq in sequences:
            seq.owner = ticket
            if progress is not None:
                seq.on_token = _announcer(ticket)
                seq.watch()
        self._post_command(lambda: self._scheduler.submit(sequences))
        return ticket

    def _leave(self, ticket: _Ticket) -> None:
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
        self, ticket: _Ticket, progress: asyncio.Queue[None]
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

    def _close(self, ticket: _Ticket) -> None:
        if not ticket.future.done() or ticket.future.cancelled():
            self._post_command(lambda: self._abort_where(lambda seq: seq.owner is ticket))
        self._leave(ticket)

    # ---- commands -------------------------------------------------------------------------------------------------

    def _post_command(self, command: Callable[[], object]) -> None:
        self._commands.append(command)
        self._wake.set()

    async def _call(self, function: Callable[[], _T]) -> _T:
        """Run `function` in the thread, between two steps."""
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
            _post(loop, lambda: settle(result, failure))

        self._post_command(command)
        return await future

    def _abort_where(self, chosen: Callable[[Sequence], bool]) -> int:
        return self._scheduler.abort(chosen, "Aborted by request.")

    async def pause(self, mode: str) -> None:
        """Stop generating: `abort`, `retract` or `in_place` (see `Scheduler.pause`)."""
        await self._call(lambda: self._scheduler.pause(mode))

    async def resume(self) -> None:
        """Go on generating."""
        await self._call(self._scheduler.resume)

    async def abort(self, rid: str | None) -> int:
        """Abort the request named `rid`, or all of them when it is None; returns how many sequences ended."""
        return await self._call(
            lambda: self._abort_where(lambda seq: rid is None or rid in (seq.rid, seq.prompt.rid))
        )

    async def flush(self) -> bool:
        """Empty the prefix cache; False when requests are running."""
        return await self._call(self._scheduler.flush)

    async def rename(self, version: str) -> None:
        """Set the weight version without changing weights."""
        await self._call(lambda: self._scheduler.rename(version))

    async def update_weights(self, folder: Path, version: str | None, *, abort: bool) -> int:
        """Serve the weights of `folder` from the next token on; returns how many sequences were running.

        Raises:
            WeightsError: the folder is not right; nothing has changed.
        """
        async with self._update:
            tensors = await asyncio.to_thread(stage_weights, folder, self._model, self.config)

            def swap() -> int:
                if abort:
                    self._abort_where(lambda _: True)
                running = len(self._scheduler.running)
                self._scheduler.swap(tensors, version if version is not None else self.version)
                self.folder = folder
                return running

            return await self._call(swap)

    async def checksum(self) -> dict[str, Any]:
        """SHA-256 of the weights that serve now, one a tensor and one over all of them."""

        def read() -> dict[str, Any]:
            tensors = checksums(self._model.named_tensors())
            whole = hashlib.sha256("".join(f"{n}:{tensors[n]};" for n in sorted(tensors)).encode())
            return {"checksum": whole.hexdigest(), "tensors": tensors}

        return await self._call(read)


def new_rid() -> str:
    """A request id for a request that brought none."""
    return uuid.uuid4().hex


def _announcer(ticket: _Ticket) -> Callable[[Sequence], None]:
    """What a streamed sequence calls, in the thread, after each token."""
    progress = ticket.progress
    assert progress is not None
    return lambda _: _post(ticket.loop, lambda: progress.put_nowait(None))


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Run `call` in a loop; a loop that has been closed has nobody left to tell."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
