"""The bridge between asyncio and the thread that steps the scheduler.

Requests wait on futures of their own event loop. The thread runs commands (pause, swap, ...) between two steps; urgent ones halt
the forward pass that runs, and its step is repeated later.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from services.local_engine.detokenize import TextCodec
from services.local_engine.grammar import GrammarCompiler
from services.local_engine.lora import Adapter
from services.local_engine.request import Prompt
from services.local_engine.sampler import stream_seed
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence
from services.local_engine.weights import Model
from triforge.errors import InputError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Swapped:
    """The state at a swap of weights: `running` sequences, and whether the cache could be `flushed`."""

    running: int
    flushed: bool


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
        self.scheduler = Scheduler(model, self.limits, version)
        self._grammars = GrammarCompiler(codec, model.vocab_size)
        self._random = random.Random(seed)  # noqa: S311 - sampling, not secrets
        self._rids: set[str] = set()  # of the requests in flight
        self._commands: deque[Callable[[], object]] = deque()
        self._posting = threading.Lock()  # a command and its halt are posted together
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def version(self) -> str:
        """The weight version that serves."""
        return self.scheduler.version

    @property
    def ready(self) -> bool:
        """Whether it samples."""
        alive = self._thread is not None and self._thread.is_alive()
        return alive and self.scheduler.released is None

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

    def _run(self) -> None:
        scheduler = self.scheduler
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
            if seq.done.set_running_or_notify_cancel():
                seq.done.set_result(None)

    def _next_command(self) -> Callable[[], object] | None:
        """Return the oldest command. All are done before the next pass, so none of them has to halt it."""
        with self._posting:
            self.scheduler.halt.clear()
            return self._commands.popleft() if self._commands else None

    def _post(self, command: Callable[[], object], *, urgent: bool = False) -> None:
        with self._posting:
            self._commands.append(command)
            if urgent:
                self.scheduler.halt.set()
        self._wake.set()

    async def call(self, function: Callable[..., _T], *arguments: Any, urgent: bool = False) -> _T:
        """Run a function in the thread, between two steps; `urgent` does not wait for the end of a forward pass."""
        future: Future[_T] = Future()

        def command() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*arguments))
                except Exception as error:  # noqa: BLE001 - handed to the caller
                    future.set_exception(error)

        self._post(command, urgent=urgent)
        return await asyncio.wrap_future(future)

    # ---- requests ----

    def build(self, prompt: Prompt) -> list[Sequence]:
        """Check a prompt and return its n sequences."""
        params = prompt.params
        max_new = self._check_prompt(prompt)
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
        sequences = []
        for sample in range(params.n):
            rid = prompt.rid if params.n == 1 else f"{prompt.rid}_{sample}"
            seq = Sequence(prompt, rid, stream_seed(seed, sample), max_new, end_ids, self.codec)
            seq.adapter = self.adapters.get(prompt.adapter or "")
            seq.grammar = self._grammars.start(params)
            sequences.append(seq)
        return sequences

    def _check_prompt(self, prompt: Prompt) -> int:
        """Check ids and length of a prompt; return the number of tokens after which the output ends."""
        vocab, params = self.model.vocab_size, prompt.params
        for name, ids in (
            ("input_ids", prompt.ids),
            ("sampling_params.stop_token_ids", params.stop_token_ids),
            ("sampling_params.logit_bias", list(map(int, params.logit_bias))),
        ):
            if ids and not 0 <= min(ids) <= max(ids) < vocab:
                bad = next(token for token in ids if not 0 <= token < vocab)
                raise InputError(f"{name}: given token id {bad}, expected ids in [0, {vocab - 1}]")
        size, max_new = len(prompt.ids), params.max_new_tokens
        if size == 0:
            raise InputError("the prompt is empty; expected at least one token")
        if max_new is None:
            max_new = max(self.longest - size, 0)
        if size + max_new <= self.longest:
            return max_new
        limit = f"--max-total-tokens {self.longest}"
        if self.longest == self.model.context_length:
            limit = f"the model's context length of {self.longest} tokens"
        raise InputError(
            f"the input ({size} tokens) plus max_new_tokens ({max_new}) exceeds {limit}; "
            "shorten the prompt or lower max_new_tokens"
        )

    def _submit(self, sequences: list[Sequence]) -> None:
        """Begin a request, unless one of its rids is in use."""
        rids = {seq.prompt.rid for seq in sequences}
        for rid in rids & self._rids:
            raise InputError(f"rid {rid!r} is in use by a request that has not ended")
        self._rids |= rids
        self._post(lambda: self.scheduler.submit(sequences))

    def _leave(self, sequences: list[Sequence]) -> None:
        """End a request; abort its sequences that have not ended."""
        self._rids -= {seq.prompt.rid for seq in sequences}
        if any(seq.finish is None for seq in sequences):
            self._post(lambda: self.scheduler.abort(lambda seq: seq in sequences))

    async def generate(self, sequences: list[Sequence]) -> None:
        """Wait until all sequences have ended. When the caller is cancelled they are aborted."""
        self._submit(sequences)
        try:
            await asyncio.gather(*(asyncio.wrap_future(seq.done) for seq in sequences))
        finally:
            self._leave(sequences)

    async def stream(self, seq: Sequence) -> AsyncGenerator[None, None]:
        """Yield once it has begun, whenever there may be new tokens, and once more at the end.

        When the generator is closed, the request ends.
        """
        loop, progress = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object = None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(progress.set)

        seq.on_token = wake
        seq.done.add_done_callback(wake)
        self._submit([seq])
        try:
            yield
            while not seq.done.done():
                await progress.wait()
                progress.clear()
                yield
            yield  # tokens between the last look and the end
        finally:
            self._leave([seq])

    # ---- control ----

    async def pause(self, mode: str) -> None:
        """Stop generating: `abort`, `retract` or `in_place` (see `Scheduler.pause`)."""
        await self.call(self.scheduler.pause, mode, urgent=True)

    async def resume(self) -> None:
        """Go on generating."""
        await self.call(self.scheduler.resume)

    async def abort(self, rid: str | None) -> int:
        """Abort the request named `rid`, or all of them when it is None; return how many sequences ended."""

        def chosen(seq: Sequence) -> bool:
            return rid is None or rid in (seq.rid, seq.prompt.rid)

        return await self.call(self.scheduler.abort, chosen, urgent=rid is None)

    async def swap(
        self, tensors: dict[str, Tensor], version: str | None, *, folder: Path | None = None
    ) -> Swapped:
        """Serve checked weights, all (those of `folder`) or some, from the next token on; `version` None keeps its name."""
        scheduler = self.scheduler

        def work() -> Swapped:
            swapped = Swapped(len(scheduler.running), flushed=not scheduler.held)
            scheduler.swap(tensors, scheduler.version if version is None else version)
            self.folder = folder or self.folder
            return swapped

        return await self.call(work, urgent=True)
