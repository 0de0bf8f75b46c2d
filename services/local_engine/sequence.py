"""One sample in progress: its prompt, the tokens so far, and why it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from services.local_engine.detokenize import TextCodec
from services.local_engine.grammar import GrammarState
from services.local_engine.lora import Adapter
from services.local_engine.request import Prompt

# (log-probability or None, token id) and, for one token, its likeliest alternatives
Scored = tuple[float | None, int]
Top = list[Scored] | None


class Sequence:
    """A sample; ends after `max_new` tokens, with one of `end_ids`, or with a stop string, for which it needs `codec`."""

    def __init__(
        self,
        prompt: Prompt,
        rid: str,
        seed: int,
        max_new: int,
        end_ids: frozenset[int],
        codec: TextCodec | None = None,
    ) -> None:
        self.prompt, self.ids = prompt, prompt.ids
        self.rid, self.seed, self.max_new, self.end_ids = rid, seed, max_new, end_ids
        self._codec = codec
        self.output: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[tuple[str, int]] = []  # weight versions, and the first token of each
        self.finish: dict[str, Any] | None = None
        self.cached = 0  # prompt tokens that came from the prefix cache when it was first admitted
        self.retractions = 0
        self.generation = 0  # of the weights that its keys and values were computed with
        self.visible = 0  # tokens that another thread may read already
        self.arrived = time.perf_counter()
        self.grammar: GrammarState | None = None
        self.adapter: Adapter | None = None
        self.input_scores: list[Scored] = []
        self.input_top: list[Top] = []
        self.output_top: list[Top] = []
        self.on_token: Callable[[], None] | None = None
        self.done: Future[None] = Future()  # set when it has ended

    @property
    def tokens(self) -> list[int]:
        """Prompt and output so far."""
        return self.ids + self.output

    def keyed(self, tokens: list[int]) -> list[int]:
        """Return the keys under which the tokens are cached: different for each adapter and for each image."""
        if self.prompt.media is not None:
            tokens = self.prompt.media.keyed(tokens)
        if self.adapter is None:
            return tokens
        return [(self.adapter.number << 32) + token for token in tokens]

    @property
    def wants_input_scores(self) -> bool:
        """Whether prompt tokens still need log-probabilities."""
        p = self.prompt
        return p.return_logprob and 0 <= p.logprob_start_len < len(p.ids) and not self.input_scores

    def begin_span(self, version: str) -> None:
        """Sample the next token with `version`."""
        while self.spans and self.spans[-1][0] != version and self.spans[-1][1] == len(self.output):
            self.spans.pop()  # it sampled no token
        if not self.spans or self.spans[-1][0] != version:
            self.spans.append((version, len(self.output)))

    def weight_spans(self, length: int, version: str) -> list[dict[str, Any]]:
        """Return the weights of the first `length` tokens; without a token one empty span of `version`."""
        starts = [start for _, start in self.spans]
        ends = [min(end, length) for end in (*starts[1:], length)]
        spans = [
            {"version": name, "start": start, "end": end}
            for (name, start), end in zip(self.spans, ends, strict=False)  # no spans, one end
            if start < end
        ]
        return spans or [{"version": version, "start": 0, "end": 0}]

    def end(self, kind: str, **details: Any) -> None:
        """Set the finish reason."""
        self.finish = {"type": kind, **details}

    def abort(self, message: str, status: int | None = None, kind: str | None = None) -> None:
        """End it from outside."""
        self.end("abort", message=message, status_code=status, err_type=kind)

    def add(self, token: int, logprob: float, full: Tensor, row: int) -> None:
        """Add a token sampled from row `row` of the log-probabilities `full` [rows, vocab]; it may end the sample."""
        self.output.append(token)
        self.logprobs.append(logprob)
        if self.prompt.top_logprobs_num > 0:
            self.output_top.append(top_scores(full[row], self.prompt.top_logprobs_num))
        closed = self.grammar is not None and self.grammar.accept(token)
        if self.grammar is not None and self.grammar.stuck:
            self.abort(self.grammar.stuck, 400, "BadRequestError")
        elif (stop := self._stop_string()) is not None:
            self.end("stop", matched=stop)
        elif closed or token in self.end_ids:
            self.end("stop", matched=token)
        elif len(self.output) >= self.max_new:
            self._end_at_limit()
        self.visible = len(self.output)
        if self.on_token is not None:
            self.on_token()

    def _stop_string(self) -> str | None:
        if self._codec is None:
            return None
        return self._codec.stop_in(self.output, self.prompt.params.stop)

    def _end_at_limit(self) -> None:
        """End with the last token that was asked for: an answer whose grammar allows no more is whole."""
        if self.grammar is not None and self.grammar.finished:
            self.end("stop", matched=None)
        else:
            self.end("length", length=self.max_new)

    def score_input(self, logits: Tensor, done: int) -> None:
        """Set the log-probabilities of the prompt tokens from `logprob_start_len` on; the first has none, as in SGLang.

        `logits` [len(prompt) - done, vocab] are of the prompt tokens after the first `done`, which were cached.
        """
        start, count = self.prompt.logprob_start_len, self.prompt.top_logprobs_num
        full = torch.log_softmax(logits[start - done :], dim=-1)
        following = self.ids[start + 1 :]
        targets = torch.tensor(following, dtype=torch.int64, device=full.device)[:, None]
        picked = full[: len(following)].gather(1, targets)[:, 0].tolist()
        self.input_scores = [(None, self.ids[start]), *zip(picked, following, strict=True)]
        if count > 0:
            self.input_top = [None, *(top_scores(row, count) for row in full[: len(following)])]

    def snapshot(self) -> tuple[int, dict[str, Any] | None]:
        """Return the tokens that may be shown, and the finish reason; safe while the other thread adds tokens."""
        # Read first: a last token is visible only after its finish reason was set.
        visible = self.visible
        finish = self.finish
        return (visible if finish is None else len(self.output)), finish


def top_scores(full: Tensor, count: int) -> list[Scored]:
    """Return the `count` likeliest tokens of one distribution [vocab], likeliest first."""
    values, ids = full.topk(min(count, full.shape[-1]))
    return list(zip(values.tolist(), ids.tolist(), strict=True))
