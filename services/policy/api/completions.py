"""Plain completions in the OpenAI dialect: text or ids in, text out, without a chat template. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from services.policy.api.openai import ended, event, head, unsent, usage, usage_of
from services.policy.api.openai_fields import OpenAIRequest
from services.policy.engines.protocol import Partial, Tops
from triforge.errors import InputError
from triforge.rendering import Renderer
from triforge.types import GenerateOutput, GenerateReply, GenerateRequest

_PROMPTS = 64  # of a request
_TOKENS = 16  # of an answer whose length is not given, as at OpenAI


class CompletionRequest(OpenAIRequest):
    """Body of `POST /v1/completions`. `prompt` is a text, ids, or a list of either; control tokens in a text stay text."""

    prompt: Any
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def requests(self, renderer: Renderer) -> list[GenerateRequest]:
        """As our own requests, one a prompt."""
        alone = isinstance(self.prompt, str) or _are_ids(self.prompt)
        rows = [self.prompt] if alone else self.prompt
        if not isinstance(rows, list) or not 1 <= len(rows) <= _PROMPTS:
            raise InputError(
                f"prompt: expected a text, ids, or a list of 1 to {_PROMPTS} of either"
            )
        if self.stream and len(rows) > 1:
            raise InputError(
                f"stream: given with {len(rows)} prompts, expected one; ask for each by itself"
            )
        sampling = self.sampling(max_new_tokens=self.max_tokens or _TOKENS)
        whole = GenerateRequest(n=self.n or 1, sampling=sampling, affinity=self.affinity)
        ids = [_ids(number, row, renderer) for number, row in enumerate(rows)]
        return [whole.model_copy(update={"prefix_ids": row}) for row in ids]


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(token) is int for token in given)


def _ids(number: int, row: Any, renderer: Renderer) -> tuple[int, ...]:
    ids = renderer.encode_text(row) if isinstance(row, str) else row
    if not _are_ids(ids):
        raise InputError(
            f"prompt.{number}: given {repr(row)[:80]}, expected a text or ids that are not empty"
        )
    return tuple(ids)


def text_completion(
    request: CompletionRequest,
    answers: Sequence[tuple[GenerateReply, Sequence[Tops]]],
    *,
    model: str,
    renderer: Renderer,
) -> dict[str, Any]:
    """Our replies, with the alternatives of each output's tokens, as one `text_completion` object."""
    outputs = [
        (output, tops)
        for reply, several in answers
        for output, tops in zip(reply.outputs, several, strict=True)
    ]
    versions = [span.version for output, _ in outputs for span in output.versions]
    return {
        **head("text_completion", model, max(versions, default=None)),
        "choices": [
            {
                "index": index,
                "text": output.text,
                "finish_reason": output.finish,
                "logprobs": _shown(request, output, tops, renderer),
            }
            for index, (output, tops) in enumerate(outputs)
        ],
        "usage": usage(
            sum(len(reply.prompt_ids) for reply, _ in answers),
            sum(len(output.ids) for output, _ in outputs),
            sum(reply.cached_tokens for reply, _ in answers),
        ),
    }


def _shown(
    request: CompletionRequest, output: GenerateOutput | Partial, tops: Tops, renderer: Renderer, first: int = 0
) -> dict[str, Any] | None:  # fmt: skip
    """Log-probabilities in the form of plain completions, of the tokens from `first` on."""
    if request.logprobs is None:
        return None
    texts = [renderer.decode([token], skip_special_tokens=False) for token in output.ids]
    offsets = [0]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    rows = [
        {renderer.decode([token], skip_special_tokens=False): score for score, token in row}
        for row in tops
    ]
    return {
        "tokens": texts[first:],
        "token_logprobs": list(output.logprobs)[first:],
        "top_logprobs": rows[first:] if request.logprobs else None,
        "text_offset": offsets[first:-1],
    }


class TextDeltas:
    """What is new in each piece of a streamed answer, as `text_completion` events."""

    def __init__(
        self, request: CompletionRequest, *, model: str, renderer: Renderer, version: int
    ) -> None:
        self._request, self._renderer = request, renderer
        self._head = head("text_completion", model, version)
        self._sent: dict[int, tuple[str, int]] = {}  # text and number of tokens, by sample
        self._ended: list[Partial] = []

    def take(self, number: int, piece: Partial) -> list[str]:
        """The events of a piece."""
        text, done = self._sent.get(number, ("", 0))
        new = unsent(piece.text, text)
        self._sent[number] = (text + new, len(piece.ids))
        if piece.finish is not None:
            self._ended.append(piece)
        elif not new and (self._request.logprobs is None or len(piece.ids) == done):
            return []
        choice = {
            "index": number,
            "text": new,
            "finish_reason": piece.finish,
            "logprobs": _shown(self._request, piece, piece.tops, self._renderer, done),
        }
        return [event({**self._head, "choices": [choice]})]

    def end(self) -> list[str]:
        """The events after the last piece."""
        return ended(self._head, usage_of(self._ended) if self._request.counts_usage else None)
