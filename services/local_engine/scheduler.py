"""Continuous batching: waiting requests join between two decode steps, finished ones leave their row at once.

It is single-threaded: the engine calls `step` again and again from its own thread, and everything else here only between two
steps.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Event

import numpy as np
import torch
from torch import Tensor

from services.local_engine.kv_cache import Halted, StepBatch
from services.local_engine.lora import tokens_of_adapters
from services.local_engine.prefix_cache import PrefixCache
from services.local_engine.sampler import sample, shifted
from services.local_engine.sequence import Sequence
from services.local_engine.weights import Model
from triforge.errors import InputError, UnavailableError
from triforge.offload import Offloaded

# Prompts that share at least this many tokens that are not cached yet are not computed in one pass: the first one goes
# ahead and the others find its keys and values. For fewer tokens a second forward pass costs more than it saves.
_SHARE_FROM = 16
# Columns of one prefill forward pass; bounds its attention mask.
_CHUNK = 512


@dataclass(frozen=True)
class Limits:
    """Bounds of the work at one time."""

    max_running: int = 64  # requests decoded in one batch
    max_total_tokens: int = 65536  # prompt plus requested tokens of all; budget of the prefix cache
    max_prefill_tokens: int = 1024  # prompt tokens computed between two decode steps


@dataclass(slots=True)
class _Entry:
    """A sequence about to be prefilled: `done` tokens of `tokens` come from the prefix cache as `pieces`."""

    seq: Sequence
    tokens: list[int]
    done: int
    pieces: list[Tensor]

    @property
    def new(self) -> int:
        """Tokens to compute."""
        return len(self.tokens) - self.done


class Scheduler:
    """The rows of the cache, and what runs next. `version` names the weights that the model holds."""

    def __init__(self, model: Model, limits: Limits, version: str) -> None:
        self.model = model
        self.limits = limits
        self.version = version
        self.paused = False
        self.released: Offloaded | None = None  # the weights, while their memory is free
        self.halt = Event()  # set by any thread: stop the forward pass that runs
        self.cache = model.new_cache()
        self.prefixes = PrefixCache(limits.max_total_tokens)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.reserved = 0  # tokens of the running sequences, and all that they may still write
        self._generation = 0
        self._finished: list[Sequence] = []
        # Last token of each row and the position it goes to; the torch views share the memory.
        self._last = np.zeros(limits.max_running, dtype=np.int64)
        self._position = np.zeros(limits.max_running, dtype=np.int64)
        self._last_view = torch.from_numpy(self._last)
        self._position_view = torch.from_numpy(self._position)
        self._bases = torch.arange(limits.max_running) * self.cache.capacity

    @property
    def idle(self) -> bool:
        """Whether `step` has nothing to do."""
        return self.paused or not (self.running or self.waiting)

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences."""
        self.waiting.extend(sequences)

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """Admit what fits, sample one token for every running sequence; return the sequences that ended."""
        # A pass that was stopped leaves no trace; a later step repeats it.
        with contextlib.suppress(Halted):
            if self.waiting and not self.paused:
                self._admit()
            if self.running and not self.paused:
                self._decode()
        return self.take_finished()

    def take_finished(self) -> list[Sequence]:
        """Return the sequences that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    # ---- control ----

    @torch.inference_mode()
    def pause(self, mode: str) -> None:
        """Stop stepping. `abort` ends everything, `retract` gives rows back, `in_place` keeps them."""
        self.paused = True
        if mode == "abort":
            self.abort(lambda _: True, "Aborted by pause_generation.")
        elif mode == "retract":
            self.waiting.extendleft(reversed(self.running))
            for seq in self.running:
                seq.retractions += 1
            self._release_from(0)

    def resume(self) -> None:
        """Step again."""
        self.take_back()
        self.paused = False

    def release(self) -> None:
        """Give the memory of weights, keys and values back, until `resume`. Raises InputError: rows are in use."""
        if self.running:
            raise InputError(
                "requests run, or are held in place; pause with abort or retract first"
            )
        self.paused = True
        self.prefixes.clear()
        self.model.apply({})  # a model that sees forgets embeddings of images
        self.cache = self.model.new_cache()
        if self.released is None:
            self.released = Offloaded(self.model.weights.values())
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def take_back(self) -> None:
        """Take the released memory again, with the weights in it."""
        if self.released is not None:
            self.released.restore()
            self.released = None

    def _demand_memory(self) -> None:
        if self.released is not None:
            raise UnavailableError("the memory of the weights is released; resume it first")

    def rows(self, name: str, count: int) -> list[object]:
        """Return the first `count` rows of a weight as numbers."""
        self._demand_memory()
        rows: list[object] = self.model.tensor(name)[:count].tolist()
        return rows

    @torch.inference_mode()
    def abort(self, chosen: Callable[[Sequence], bool], message: str = "Aborted.") -> int:
        """End the chosen sequences, waiting or running, with the tokens that they have; return how many."""
        gone = [seq for seq in self.waiting if chosen(seq)]
        self.waiting = deque(seq for seq in self.waiting if not chosen(seq))
        for row in range(len(self.running) - 1, -1, -1):
            if chosen(self.running[row]):
                gone.append(self.running[row])
                self._release(row)
        for seq in gone:
            seq.abort(message)
        self._finished.extend(gone)
        return len(gone)

    @property
    def held(self) -> bool:
        """Whether a pause holds rows that have keys and values of their own."""
        return self.paused and bool(self.running)

    def flush(self) -> bool:
        """Forget all cached prefixes; refused (False) while rows are in use, or are about to be."""
        if self.running or (self.waiting and not self.paused):
            return False
        self.prefixes.clear()
        return True

    @torch.inference_mode()
    def swap(self, tensors: dict[str, Tensor], version: str) -> None:
        """Serve other weights, all or some, from the next token on. Running sequences keep their keys and values."""
        self._demand_memory()
        self.model.apply(tensors)
        self.rename(version)
        self.prefixes.clear()
        # Rows that hold keys of the old weights must not enter the prefix cache.
        self._generation += 1

    def rename(self, version: str) -> None:
        """Call the weights that serve now `version`."""
        self.version = version
        for seq in self.running:
            seq.begin_span(version)

    # ---- prefill ----

    def _admit(self) -> None:
        budget = self.limits.max_prefill_tokens
        while budget > 0 and self.waiting:
            picked = self._pick(budget)
            if not picked:
                return
            budget -= sum(e.new for e in picked)
            entries = sorted(picked, key=lambda e: e.new)
            try:
                while entries:
                    n = sum(e.new <= 16 + 2 * entries[0].new for e in entries)
                    self._prefill(entries[:n])
                    entries = entries[n:]
            except Exception:  # halted or failed: sequences without a row go back to the queue
                undone = {e.seq for e in entries} - set(self.running)
                self.waiting.extendleft(e.seq for e in reversed(picked) if e.seq in undone)
                raise

    def _pick(self, budget: int) -> list[_Entry]:
        """Take sequences off the queue, oldest first, while rows, tokens and the prefill budget last."""
        picked: list[_Entry] = []
        later: list[Sequence] = []
        fresh: set[tuple[int, ...]] = set()
        reserved = self.reserved
        while self.waiting and len(self.running) + len(picked) < self.limits.max_running:
            seq = self.waiting[0]
            need = len(seq.ids) + seq.max_new
            if budget <= 0 or reserved + need > self.limits.max_total_tokens:
                break
            self.waiting.popleft()
            tokens = seq.ids + seq.output
            limit = len(tokens) - 1
            if seq.wants_input_scores:
                limit = min(limit, seq.prompt.logprob_start_len)
            keyed = seq.keyed(tokens)
            done, pieces = self.prefixes.match(keyed, limit)
            if len(tokens) - done >= _SHARE_FROM and not seq.wants_input_scores:
                key = tuple(keyed[done : done + _SHARE_FROM])
                if key in fresh and self.prefixes.budget >= len(tokens):
                    later.append(seq)
                    continue
                fresh.add(key)
            picked.append(_Entry(seq, tokens, done, pieces))
            budget -= len(tokens) - done
            reserved += need
        self.waiting.extendleft(reversed(later))
        return picked

    def _prefill(self, entries: list[_Entry]) -> None:
        """Give rows to sequences, compute their prompts and sample their first token."""
        first = len(self.running)
        longest = max(len(e.seq.ids) + e.seq.max_new for e in entries)
        self.cache.reserve(first + len(entries), longest, self._position[:first].tolist())
        self._bases = torch.arange(self.limits.max_running) * self.cache.capacity
        for row, entry in enumerate(entries, first):
            at = 0
            for piece in entry.pieces:
                self.cache.write_prefix(row, at, piece)
                at += piece.shape[1]
            self.reserved += len(entry.seq.ids) + entry.seq.max_new
            self.running.append(entry.seq)
        try:
            pieces = self._compute(first, entries)
        except Halted:
            self._release_from(first)
            raise
        for row, (entry, logits) in enumerate(zip(entries, pieces, strict=True), first):
            seq = entry.seq
            if not seq.retractions:
                seq.cached = entry.done
            seq.generation = self._generation
            seq.begin_span(self.version)
            self._position[row] = len(entry.tokens)
            if seq.wants_input_scores:
                seq.score_input(logits, entry.done)
            self._remember(row, entry.tokens)
        self._sample(first, torch.cat([piece[-1:] for piece in pieces]))

    def _compute(self, first: int, entries: list[_Entry]) -> list[Tensor]:
        """Return logits for each row: of its last token, or of all new tokens when the prompt is to be scored."""
        tokens = [e.tokens[e.done :] for e in entries]
        logits: list[list[Tensor]] = [[] for _ in entries]
        for start in range(0, max(map(len, tokens)), _CHUNK):
            part = [t[start : start + _CHUNK] for t in tokens]
            past = [e.done + min(start, len(t)) for e, t in zip(entries, tokens, strict=True)]
            wanted = []
            for entry, here, whole in zip(entries, part, tokens, strict=True):
                ends = here and start + len(here) == len(whole)
                last = [len(here) - 1] if ends else []
                wanted.append(list(range(len(here))) if entry.seq.wants_input_scores else last)
            batch = self.cache.prefill_batch(first, part, past, wanted)
            found = self._forward(batch, [e.seq for e in entries], [len(t) for t in part])
            pieces = torch.split(found, [len(w) for w in wanted])
            for row, piece in zip(logits, pieces, strict=True):
                row.append(piece)
        return [torch.cat(row) for row in logits]

    def _forward(self, batch: StepBatch, rows: list[Sequence], counts: list[int]) -> Tensor:
        batch.halt = self.halt
        adapters = [seq.adapter for seq in rows]
        if any(adapters):
            batch.adapted = tokens_of_adapters(adapters, counts, self.model.device)
        if self.model.vision is not None:
            batch.media = [seq.prompt.media for seq in rows]
        return self.model.forward(batch, self.cache).float()  # what is sampled and scored

    def _remember(self, row: int, tokens: list[int]) -> None:
        """Put the new part of a row's keys and values into the prefix cache."""
        seq = self.running[row]
        if seq.generation != self._generation or len(tokens) > self.prefixes.budget:
            return
        keyed = seq.keyed(tokens)
        start, _ = self.prefixes.match(keyed, len(keyed))
        if start < len(keyed):
            self.prefixes.insert(keyed, start, self.cache.read(row, start, len(keyed)))

    # ---- decode ----

    def _decode(self) -> None:
        n = len(self.running)
        position = self._position[:n]
        span = int(position.max()) + 1
        batch = self.cache.decode_batch(
            self._last_view[:n], self._position_view[:n], self._bases[:n], span
        )
        logits = self._forward(batch, self.running, [1] * n)
        position += 1
        self._sample(0, logits)

    def _sample(self, first: int, logits: Tensor) -> None:
        """Sample for the rows from `first` on, add the tokens, and free the rows of sequences that ended."""
        rows = self.running[first:]
        bans = [(i, seq.grammar.banned()) for i, seq in enumerate(rows) if seq.grammar is not None]
        params = [seq.prompt.params for seq in rows]
        logits = shifted(logits, params, [seq.output for seq in rows])
        seeds, counts = [seq.seed for seq in rows], [len(seq.output) for seq in rows]
        sampled = sample(logits, params, seeds, counts, bans)
        tokens, scores = sampled.ids.tolist(), sampled.logprobs.tolist()
        self._last[first : first + len(rows)] = tokens
        for index, (seq, token, score) in enumerate(zip(rows, tokens, scores, strict=True)):
            if seq.max_new == 0:  # only the prompt was to be scored
                seq.end("length", length=0)
            else:
                seq.add(token, score, sampled.full, index)
        for row in range(len(self.running) - 1, first - 1, -1):
            seq = self.running[row]
            if seq.finish is not None:
                self._remember(row, seq.tokens[: int(self._position[row])])
                self._release(row)
                self._finished.append(seq)

    def _release_from(self, first: int) -> None:
        while len(self.running) > first:
            self._release(len(self.running) - 1)

    def _release(self, row: int) -> None:
        """Free a row and move the last one into the gap."""
        seq = self.running[row]
        last = len(self.running) - 1
        self.reserved -= len(seq.ids) + seq.max_new
        if row != last:
            self.cache.move(last, row, int(self._position[last]))
            self._last[row], self._position[row] = self._last[last], self._position[last]
            self.running[row] = self.running[last]
        self.running.pop()
