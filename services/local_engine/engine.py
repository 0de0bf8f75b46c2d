"""The bridge between asyncio and the thread that steps the scheduler.

Requests wait on futures of their own event loop. The thread runs commands (pause, swap, ...) between two steps; urgent
ones stop the forward pass that runs, and its step is repeated later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from services.local_engine.detokenize import StopStrings, TextCodec
from services.local_engine.grammar import GrammarCompiler
from services.local_engine.lora import Adapter
from services.local_engine.model import Model
from services.local_engine.request import Prompt
from services.local_engine.sampler import stream_seed
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence
from triforge.errors import BusyError, InputError, UnavailableError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Swapped:
    """What a swap of weights met: `running` sequences, and whether the cache could be `flushed`."""

    running: int
    flushed: bool


class _Request:
    """Sequences that were asked for together, and the future of who waits for them, in the loop that asked."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences, self.open = sequences, len(sequences)
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.progress = asyncio.Event()
        self.done.add_done_callback(lambda _: self.progress.set())
        for seq in sequences:
            seq.owner = self

    def post(self, call: Callable[[], object]) -> None:
        """Run `call` in the loop; a loop that has been closed has nobody left who waits."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call)

    def close_one(self) -> None:
        """One of the sequences has ended."""
        self.open -= 1
        if self.open == 0 and not self.done.done():
            self.done.set_result(None)


class Engine:
    """Serves one model, with its weights, `config.json` and tokenizer from `folder`.

    A `seed` makes requests without one reproducible as long as their order is.
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
        self.model, self.config, self.codec, self.folder = model, config, codec, folder
        self.limits = limits if limits is not None else Limits()
        # Tokens that one request may use, prompt and output together.
        self.longest = min(model.context_length, self.limits.max_total_tokens)
        self.adapters: dict[str, Adapter] = {}
        self.in_flight = 0  # sequences that were taken on and not answered yet
        self._scheduler = Scheduler(model, self.limits, version)
        self._grammars = GrammarCompiler(codec, model.vocab_size)
        self._random = random.Random(seed)  # noqa: S311 - sampling, not secrets
        self._requests: dict[str, _Request] = {}
        self._commands: deque[Callable[[], object]] = deque()
        self._posting = threading.Lock()  # a command and its halt come together
        self._wake = threading.Event()
        self._stopping = self._draining = False
        self._thread: threading.Thread | None = None

    @property
    def version(self) -> str:
        """The weight version that serves now."""
        return self._scheduler.version

    @property
    def paused(self) -> bool:
        """Whether generation is paused."""
        return self._scheduler.paused

    @property
    def ready(self) -> bool:
        """Whether it takes new requests."""
        alive = self._thread is not None and self._thread.is_alive()
        return alive and not self._draining and self._scheduler.released is None

    def load(self) -> dict[str, int]:
        """How busy it is, in sequences."""
        scheduler = self._scheduler
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        return {"num_running_reqs": running, "num_waiting_reqs": waiting}

    # ---- the thread ----

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="local-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the present step; open requests end as aborted."""
        if self._thread is not None:
            self._stopping = True
            self._wake.set()
            self._thread.join()
            self._thread = None

    async def drain(self, limit_s: float) -> None:
        """Take no new requests, let those in flight end, and abort what has not ended after `limit_s` seconds."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.in_flight:  # noqa: ASYNC110 - looked at in a loop that is about to end
                    await asyncio.sleep(0.05)
        if self.in_flight:
            _log.warning("%d requests are ended after %g s of draining", self.in_flight, limit_s)
            await self.abort(None)

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
            self._deliver(finished)
            if scheduler.idle and not self._commands and not self._stopping:
                self._wake.wait()
        scheduler.abort(lambda _: True, "The engine stopped.")
        self._deliver(scheduler.take_finished())

    @staticmethod
    def _deliver(finished: list[Sequence]) -> None:
        for seq in finished:
            seq.owner.post(seq.owner.close_one)

    def _next_command(self) -> Callable[[], object] | None:
        """The oldest command. All are done before the next pass, so none of them has to stop it."""
        with self._posting:
            self._scheduler.halt.clear()
            return self._commands.popleft() if self._commands else None

    def _post(self, command: Callable[[], object], *, urgent: bool = False) -> None:
        with self._posting:
            self._commands.append(command)
            if urgent:
                self._scheduler.halt.set()
        self._wake.set()

    async def call(self, function: Callable[[], _T], *, urgent: bool = False) -> _T:
        """Run `function` in the thread, between two steps; `urgent` does not wait for the end of a forward pass."""
        future: Future[_T] = Future()

        def command() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:  # noqa: BLE001 - handed to the caller
                    future.set_exception(error)

        self._post(command, urgent=urgent)
        return await asyncio.wrap_future(future)

    # ---- requests ----

    def build(self, prompt: Prompt) -> list[Sequence]:
        """The n sequences of a prompt, after it was checked."""
        params = prompt.params
        max_new = self._checked_max_new(prompt)
        if prompt.adapter is not None and prompt.adapter not in self.adapters:
            raise InputError(
                f"lora_path is {prompt.adapter!r}; loaded adapters are {sorted(self.adapters) or 'none'}"
            )
        end_ids: frozenset[int] = frozenset()
        if not params.ignore_eos:  # which in SGLang switches off `stop_token_ids` as well
            end_ids = self.codec.end_ids.union(params.stop_token_ids)
        seed = params.sampling_seed
        if seed is None:
            seed = self._random.getrandbits(63)
        found = []
        for sample in range(params.n):
            rid = prompt.rid if params.n == 1 else f"{prompt.rid}_{sample}"
            seq = Sequence(prompt, rid, stream_seed(seed, sample), max_new, end_ids)
            seq.stops = StopStrings(self.codec, params.stop) if params.stop else None
            seq.adapter = self.adapters.get(prompt.adapter or "")
            seq.grammar = self._grammars.start(params)
            found.append(seq)
        return found

    def _checked_max_new(self, prompt: Prompt) -> int:
        """The number of tokens after which the output ends."""
        ids, vocab = prompt.ids, self.model.vocab_size
        if not ids:
            raise InputError("the prompt is empty; expected at least one token")
        if not 0 <= min(ids) <= max(ids) < vocab:
            bad = next(i for i in ids if not 0 <= i < vocab)
            raise InputError(f"token id {bad} is not in the vocabulary of {vocab} tokens")
        biased = map(int, prompt.params.logit_bias)
        for name, named in (
            ("stop_token_ids", prompt.params.stop_token_ids),
            ("logit_bias", biased),
        ):
            for token in named:
                if not 0 <= token < vocab:
                    raise InputError(
                        f"sampling_params.{name} names token id {token}; expected ids in [0, {vocab - 1}]"
                    )
        asked = prompt.params.max_new_tokens
        max_new = max(self.longest - len(ids), 0) if asked is None else asked
        if len(ids) + max_new <= self.longest:
            return max_new
        limit = f"--max-total-tokens {self.longest}"
        if self.longest == self.model.context_length:
            limit = f"the model's context length of {self.longest} tokens"
        raise InputError(
            f"the input ({len(ids)} tokens) plus max_new_tokens ({max_new}) exceeds {limit}; "
            "shorten the prompt or lower max_new_tokens"
        )

    def _enter(self, sequences: list[Sequence]) -> _Request:
        """Take a request on, unless the queue is full or a rid is in use."""
        if self._draining:
            raise UnavailableError(
                "the engine is shutting down and takes no new requests", retry_after_s=5.0
            )
        most = self.limits.max_running + self.limits.max_queued
        if self.in_flight + len(sequences) > most:
            raise BusyError(
                f"the request queue is full ({self.in_flight} in flight, {most} allowed); "
                "retry later or raise --max-queued-requests",
                retry_after_s=1.0,
            )
        rids = {seq.prompt.rid for seq in sequences}
        for rid in rids & self._requests.keys():
            raise InputError(f"rid {rid!r} is in use by a request that has not ended")
        request = _Request(sequences)
        request.done.add_done_callback(lambda _: self._leave(request, rids))
        self._requests |= dict.fromkeys(rids, request)
        self.in_flight += len(sequences)
        return request

    def _leave(self, request: _Request, rids: set[str]) -> None:
        self.in_flight -= len(request.sequences)
        for rid in rids:
            del self._requests[rid]
        if request.done.cancelled():  # nobody waits any more
            self._post(lambda: self._scheduler.abort(lambda seq: seq.owner is request))

    async def generate(self, sequences: list[Sequence]) -> None:
        """Wait until all sequences have ended. When the caller is cancelled they are aborted."""
        request = self._enter(sequences)
        self._post(lambda: self._scheduler.submit(sequences))
        await request.done

    def stream(self, sequences: list[Sequence]) -> AsyncGenerator[None, None]:
        """Start at once; the generator yields whenever there may be new tokens, and once more when all have ended."""
        request = self._enter(sequences)
        for seq in sequences:
            seq.on_token = lambda: request.post(request.progress.set)
        self._post(lambda: self._scheduler.submit(sequences))
        return self._progress(request)

    @staticmethod
    async def _progress(request: _Request) -> AsyncGenerator[None, None]:
        try:
            while not request.done.done():
                await request.progress.wait()
                request.progress.clear()
                yield
            yield  # what came between the last look and the end
        finally:
            request.done.cancel()

    # ---- control ----

    async def pause(self, mode: str) -> None:
        """Stop generating: `abort`, `retract` or `in_place` (see `Scheduler.pause`)."""
        await self.call(lambda: self._scheduler.pause(mode), urgent=True)

    async def resume(self) -> None:
        """Go on generating."""
        await self.call(self._scheduler.resume)

    async def release_memory(self) -> None:
        """Give the memory of weights, keys and values back; see `Scheduler.release`."""
        await self.call(self._scheduler.release)

    async def resume_memory(self) -> None:
        """Take it again. Harmless if none was released."""
        await self.call(self._scheduler.take_back)

    async def abort(self, rid: str | None) -> int:
        """Abort the request named `rid`, or all of them when it is None; returns how many sequences ended."""

        def chosen(seq: Sequence) -> bool:
            return rid is None or rid in (seq.rid, seq.prompt.rid)

        return await self.call(lambda: self._scheduler.abort(chosen), urgent=rid is None)

    async def flush(self) -> bool:
        """Empty the prefix cache; False when requests are running."""
        return await self.call(self._scheduler.flush)

    async def rename(self, version: str) -> None:
        """Set the weight version without changing weights."""
        await self.call(lambda: self._scheduler.rename(version))

    async def rows(self, name: str, count: int) -> Any:
        """The first `count` rows of a weight that serves now, as numbers."""

        def work() -> Any:
            self._scheduler.demand_memory()
            return self.model.tensor(name)[:count].tolist()

        return await self.call(work)

    async def swap(
        self, tensors: dict[str, Tensor], version: str | None, *, folder: Path | None = None
    ) -> Swapped:
        """Serve verified weights, all (those of `folder`) or some, from the next token on; `version` None keeps its name."""

        def work() -> Swapped:
            scheduler = self._scheduler
            found = Swapped(len(scheduler.running), flushed=not scheduler.held)
            scheduler.swap(tensors, self.version if version is None else version)
            self.folder = folder or self.folder
            return found

        return await self.call(work, urgent=True)


def new_rid() -> str:
    """A request id for a request that brought none."""
    return uuid.uuid4().hex
