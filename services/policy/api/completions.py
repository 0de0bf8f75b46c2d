"""Plain completions in OpenAI's dialect: text or ids in, text out, without a chat template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from services.policy.api.calls.reply import ParsedReply
from services.policy.api.openai import OpenAIDialect, OpenAIRequest
from services.policy.engines.protocol import Extras, Partial, Tops
from triforge.errors import InputError
from triforge.rendering import Renderer
from triforge.types import GenerateOutput, GenerateRequest

_PROMPTS = 64  # of a request
_TOKENS = 16  # of an answer without max_tokens, as at OpenAI


class CompletionRequest(OpenAIRequest):
    """Body of `POST /v1/completions`. `prompt` is a text, ids, or a list of either; control tokens in a text stay text."""

    prompt: Any
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    def extras(self) -> Extras:
        return replace(super().extras(), top_logprobs=self.logprobs or 0)

    def requests(self, renderer: Renderer) -> list[GenerateRequest]:
        """Return our own requests, one for each prompt."""
        alone = isinstance(self.prompt, str) or _are_ids(self.prompt)
        prompts = [self.prompt] if alone else self.prompt
        if not isinstance(prompts, list) or not 1 <= len(prompts) <= _PROMPTS:
            raise InputError(
                f"prompt: expected a text, ids, or a list of 1 to {_PROMPTS} of either"
            )
        if self.stream and len(prompts) > 1:
            raise InputError(
                f"stream: given with {len(prompts)} prompts, expected one; send a request for each"
            )
        sampling = self.sampling(max_new_tokens=self.max_tokens or _TOKENS)
        request = GenerateRequest(n=self.n or 1, sampling=sampling, affinity=self.affinity)
        ids = [_ids(number, prompt, renderer) for number, prompt in enumerate(prompts)]
        return [request.model_copy(update={"prefix_ids": row}) for row in ids]


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _ids(number: int, prompt: Any, renderer: Renderer) -> tuple[int, ...]:
    ids = renderer.encode_text(prompt) if isinstance(prompt, str) else prompt
    if not _are_ids(ids):
        raise InputError(
            f"prompt.{number}: given {repr(prompt)[:80]}, expected a text or ids that are not empty"
        )
    return tuple(ids)


class CompletionDialect(OpenAIDialect[CompletionRequest]):
    """Answers as `text_completion` objects."""

    object = chunk = "text_completion"
    prefix = "cmpl"

    def _choice(self, number: int, output: GenerateOutput, tops: Tops) -> dict[str, Any]:
        return {
            "text": output.text,
            "finish_reason": output.finish,
            "logprobs": self._logprobs(output, tops),
        }

    def _text(self, number: int, piece: Partial, new: str) -> Iterable[str]:
        logprobs = self._logprobs(piece, piece.tops, self._sent[number][1])
        yield self._chunk(number, text=new, logprobs=logprobs)

    def _end(self, number: int, piece: Partial, reply: ParsedReply) -> Iterable[str]:
        yield self._chunk(number, text="", finish=reply.finish(str(piece.finish)))

    def _logprobs(
        self, output: GenerateOutput | Partial, tops: Tops, first: int = 0
    ) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens from `first` on."""
        if self.body.logprobs is None:
            return None
        texts = [self._token(token) for token in output.ids]
        offsets = [0]
        for text in texts:
            offsets.append(offsets[-1] + len(text))
        rows = [{self._token(token): logprob for logprob, token in row} for row in tops]
        return {
            "tokens": texts[first:],
            "token_logprobs": list(output.logprobs)[first:],
            "top_logprobs": rows[first:] if self.body.logprobs else None,
            "text_offset": offsets[first:-1],
        }
