"""Supervised training on conversations, before a run or for models of the demo.

Each item is one JSON line, `{"messages": [...], "weight": 1.0, "group": ""}`. Items of one group, such as the votes on an episode,
are trained on in one update, where what they begin with alike is computed once, and held out together. Only the assistant's tokens are trained on, rendered to
exactly the ids that a rollout would have.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.token_batches import Floats, Ints, Sequences
from services.trainer.learner.weights.tensors import model_files, model_tensors, publish_model
from triforge.environments.kit import same_words
from triforge.environments.rows import object_in, read_file
from triforge.errors import InputError
from triforge.rendering import Renderer
from triforge.types import ChatMessage

_BUCKET = 16  # batches whose rows are sorted by length together, so that little is padding
_EVAL_ROWS = 512
_PATIENCE = 3  # measurements without a lower loss


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisedOptions:
    """Options of a job. The first of `steps` and `seconds` to run out ends it; only `steps` repeats bit for bit."""

    learning_rate: float = 3e-3  # AdamW's highest step size
    final_share: float = (
        0.1  # the step size falls linearly to this share of it; 1 keeps it constant
    )
    warmup: int = 20  # steps in which the step size rises from 0
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    batch_rows: int = 16  # conversations an update, at most; of a larger group all
    steps: int = 0  # updates; 0 leaves the end to `seconds`
    seconds: float = 0.0  # time budget; 0 leaves the end to `steps`
    token_budget: int = 8192  # tokens a forward pass may hold
    eval_share: float = (
        0.02  # of the conversations, held out and measured; those that ask the same stay together
    )
    eval_every: int = 0  # updates between two measurements, as `SupervisedJob.run` says; 0 measures before and after only
    seed: int = 1  # of the split and the order

    def __post_init__(self) -> None:
        if self.steps < 1 and self.seconds <= 0:
            raise InputError(
                f"steps and seconds: given {self.steps} and {self.seconds}, expected at least one above 0"
            )
        if self.batch_rows < 1 or not 0 <= self.eval_share < 1 or self.learning_rate <= 0:
            raise InputError(
                f"given batch_rows {self.batch_rows}, eval_share {self.eval_share}, learning_rate "
                f"{self.learning_rate}; expected at least 1, a share in [0, 1), and above 0"
            )


@dataclass(frozen=True, slots=True)
class Items:
    """Conversations as ids.

    `weights` are float32 [N], one a trained token; `asked` is what each asks the assistant (or its group, with which it is held
    out), `groups` the group of each, a name of its own where it has none.
    """

    sequences: Sequences
    weights: Floats
    asked: tuple[str, ...]
    groups: tuple[str, ...]


def read_items(path: Path, renderer: Renderer, *, max_tokens: int) -> Items:
    """Read JSON lines.

    Raises:
        InputError: names the bad lines; nothing is trained on a file with a bad line.
    """
    conversations = read_file(path, lambda row: _item(row, renderer, max_tokens))
    if not conversations:
        raise InputError(f"{path}: no conversation in it")
    ids, scored, weights, asked = [], [], [], []
    groups: list[str] = []
    for number, (sequences, weight, question, group) in enumerate(conversations):
        for tokens, places in sequences:
            ids.append(tokens)
            scored.append(places)
            weights.append(np.full(len(places), weight, dtype=np.float32))
            asked.append(group or question)
            groups.append(group or f"{number}/{len(groups)}")
    return Items(Sequences(ids, scored), np.concatenate(weights), tuple(asked), tuple(groups))


def _item(
    row: Any, renderer: Renderer, max_tokens: int
) -> tuple[list[tuple[Ints, Ints]], float, str, str]:
    """Return the sequences of a conversation, each with the places of its trained tokens, the weight of those, what it asks, and its group.

    Arrays, because of a million lists a collection of garbage takes longer than a chat template may.
    """
    document = object_in(row)
    if not isinstance(document.get("messages"), list):
        raise InputError('expected an object {"messages": [...], "weight": 1.0}')
    unknown = sorted(set(document) - {"messages", "weight", "group"})
    weight, group = document.get("weight", 1.0), document.get("group", "")
    good = isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < 1e6
    if unknown or not good or not isinstance(group, str):
        raise InputError(
            f"given fields {unknown or 'messages, weight'}, group {group!r} and weight {weight!r}, expected messages and a weight above 0; "
            "a group is a text"
        )
    try:
        messages = [ChatMessage.model_validate(m) for m in document["messages"]]
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"messages: {first['loc']}: {first['msg']}") from None
    sequences = renderer.encode_supervised(messages)
    longest = max(len(tokens) for tokens, _ in sequences)
    if longest > max_tokens:
        raise InputError(
            f"given {longest} tokens, expected at most {max_tokens} (the model's longest)"
        )
    asked = "\n".join(str(m.content) for m in messages if m.role != "assistant")
    arrays = [
        (np.asarray(tokens, dtype=np.int64), np.flatnonzero(mask)) for tokens, mask in sequences
    ]
    return arrays, float(weight), same_words(asked), group


def _held_out(order: Sequence[int], asked: Sequence[str], most: int) -> set[int]:
    """Return the rows that are held out, at most so many: the first of `order`, and with each row all that ask the same."""
    rows: dict[str, list[int]] = {}
    for row in order:
        rows.setdefault(asked[row], []).append(row)
    held: set[int] = set()
    for same in rows.values():
        if len(held) + len(same) <= most:
            held.update(same)
    return held


class SupervisedJob:
    """One job, from a model folder and items to a trained model folder."""

    def __init__(self, source: Path, items: Items, options: SupervisedOptions) -> None:
        self._source, self._items, self._options = source, items, options
        here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = ScoringModel.load(source, here)
        order = list(range(len(items.sequences.counts)))
        self._draw = random.Random(options.seed)  # noqa: S311 - a reproducible order, not a secret
        self._draw.shuffle(order)
        held = _held_out(order, items.asked, round(len(order) * options.eval_share))
        self._eval = [row for row in order if row in held][:_EVAL_ROWS]
        self._train = [row for row in order if row not in held]
        if not self._train:
            raise InputError(
                f"eval_share: given {options.eval_share} of {len(order)} conversations, expected some left to train on"
            )
        groups: dict[str, list[int]] = {}
        for row in self._train:
            groups.setdefault(items.groups[row], []).append(row)
        self._groups = [*groups.values()]
        self._queue: list[list[int]] = []
        self._optimizer = torch.optim.AdamW(
            list(self._model.parameters().values()),
            lr=options.learning_rate,
            weight_decay=options.weight_decay,
            fused=True,
        )

    def run(
        self,
        target: Path,
        *,
        replace: bool = False,
        progress: Callable[[int, float], None] = lambda *_: None,
    ) -> dict[str, Any]:
        """Train and write the model folder; return the report. `progress` gets the number of updates and the last loss.

        With `eval_every` the model of the lowest held-out loss is written, and three measurements without a lower one end the job.
        The report has settings, the loss curve `train` as [step, loss], measurements `eval` as [step, loss, accuracy],
        tokens and seconds.

        Raises:
            StorageError: the folder cannot be written.
            WeightsError: it exists and is not to be replaced.
        """
        options, started = self._options, time.monotonic()
        curve: list[tuple[int, float]] = []
        measured = [self._measure(0)] if self._eval else []
        best: dict[str, torch.Tensor] = {}
        module = self._model.module
        step = tokens = 0
        while self._done(step, elapsed := time.monotonic() - started) < 1.0:
            self._set_rate(step, elapsed)
            rows = self._next_rows()
            curve.append((step, self._update(rows)))
            tokens += sum(self._items.sequences.lengths[r] for r in rows)
            step += 1
            progress(step, curve[-1][1])
            if self._eval and options.eval_every and step % options.eval_every == 0:
                measured.append(self._measure(step))
                lowest = min(measured, key=itemgetter(1))[0]
                if lowest == step:
                    best = {name: t.clone() for name, t in model_tensors(module).items()}
                elif step - lowest >= _PATIENCE * options.eval_every:
                    break
        seconds = time.monotonic() - started
        if self._eval and measured[-1][0] != step:
            measured.append(self._measure(step))
        report = {
            "options": asdict(options),
            "items": len(self._train),
            "held_out": len(self._eval),
            "parameters": sum(p.numel() for p in self._model.parameters().values()),
            "steps": step,
            "tokens": tokens,
            "seconds": round(seconds, 3),
            "tokens_per_s": round(tokens / seconds, 1) if seconds else 0.0,
            "train": [[s, round(loss, 6)] for s, loss in _thinned(curve)],
            "eval": [[s, round(loss, 6), round(accuracy, 6)] for s, loss, accuracy in measured],
        }
        about = {"kind": "supervised", "steps": step, "seed": options.seed}
        weights = model_files(module, best or model_tensors(module))
        publish_model(weights, self._source, target, about, replace=replace)
        return report

    def _done(self, step: int, elapsed: float) -> float:
        """Return the spent share of `steps` or of `seconds`, whichever is larger."""
        steps, seconds = self._options.steps, self._options.seconds
        return max(step / steps if steps else 0.0, elapsed / seconds if seconds else 0.0)

    def _set_rate(self, step: int, elapsed: float) -> None:
        """Linear warm-up, then linear decay."""
        options = self._options
        share = 1.0 - (1.0 - options.final_share) * min(1.0, self._done(step, elapsed))
        rising = min(1.0, (step + 1) / options.warmup) if options.warmup else 1.0
        self._optimizer.param_groups[0]["lr"] = options.learning_rate * share * rising

    def _next_rows(self) -> list[int]:
        """Shuffled epochs; within a window groups are sorted by length, and the window's batches are shuffled again."""
        if not self._queue:
            order, size = list(self._groups), self._options.batch_rows
            lengths = self._items.sequences.lengths
            self._draw.shuffle(order)
            for window in _batches(order, size * _BUCKET):
                part = sorted(window, key=lambda group: max(lengths[row] for row in group))
                batches = [list(chain(*groups)) for groups in _batches(part, size)]
                self._draw.shuffle(batches)
                self._queue += batches
            self._queue.reverse()
        return self._queue.pop()

    def _update(self, rows: list[int]) -> float:
        """One optimiser update on the weighted mean of the rows' trained tokens; returns that loss."""
        sequences, weights = self._items.sequences, self._items.weights
        total = float(weights[sequences.cells_of(rows)].sum())
        loss = 0.0
        for part in self._parts(rows):
            batch = self._model.batch(sequences, part)
            logprobs, _ = self._model.score(batch, 1.0)
            share = torch.from_numpy(weights[batch.cells] / total).to(self._model.device)
            piece = -(logprobs * share).sum()
            piece.backward()  # type: ignore[no-untyped-call]
            loss += float(piece.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters().values(), self._options.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def _parts(self, rows: Sequence[int]) -> list[list[int]]:
        return self._model.passes(self._items.sequences, rows, self._options.token_budget)

    @torch.no_grad()
    def _measure(self, step: int) -> tuple[int, float, float]:
        """Mean loss a token over the held-out rows, and the share of tokens given more than half of the probability."""
        loss = sure = count = 0.0
        for part in self._parts(self._eval):
            batch = self._model.batch(self._items.sequences, part)
            logprobs, _ = self._model.score(batch, 1.0)
            loss -= float(logprobs.sum())
            sure += float((logprobs > np.log(0.5)).sum())
            count += len(logprobs)
        return step, loss / count, sure / count


def _batches(groups: Sequence[list[int]], size: int) -> list[list[list[int]]]:
    """Split groups into batches of at most so many rows; a larger group is one alone."""
    found: list[list[list[int]]] = []
    rows = size
    for group in groups:
        if rows + len(group) > size:
            found.append([])
            rows = 0
        found[-1].append(group)
        rows += len(group)
    return found


def _thinned(curve: list[tuple[int, float]], points: int = 200) -> list[tuple[int, float]]:
    """At most about `points` means over equal stretches, so that a report stays small."""
    size = max(1, -(-len(curve) // points))
    chunks = [curve[i : i + size] for i in range(0, len(curve), size)]
    return [(c[-1][0], sum(loss for _, loss in c) / len(c)) for c in chunks]
