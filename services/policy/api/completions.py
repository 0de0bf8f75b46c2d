"""Plain completions in OpenAI's dialect: text or ids in, text out, without a chat template."""

from __future__ import annotations

import codecs
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

    def __init__(
        self,
        body: CompletionRequest,
        *,
        model: str,
        renderer: Renderer,
        version: int,
        name: str = "",
    ) -> None:
        super().__init__(body, model=model, renderer=renderer, version=version, name=name)
        self._places: dict[int, _Places] = {}

    def _choice(self, number: int, output: GenerateOutput, tops: Tops) -> dict[str, Any]:
        return {
            "text": output.text,
            "finish_reason": output.finish,
            "logprobs": self._logprobs(output, tops, _Places()),
        }

    def _text(self, number: int, piece: Partial, new: str) -> Iterable[str]:
        places = self._places.setdefault(number, _Places())
        logprobs = self._logprobs(piece, piece.tops, places, self._sent[number][1])
        yield self._chunk(number, text=new, logprobs=logprobs)

    def _end(self, number: int, piece: Partial, reply: ParsedReply) -> Iterable[str]:
        yield self._chunk(number, text="", finish=reply.finish(str(piece.finish)))

    def _logprobs(
        self, output: GenerateOutput | Partial, tops: Tops, places: _Places, first: int = 0
    ) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens from `first` on; `places` has counted those before."""
        if self.body.logprobs is None:
            return None
        tokens = [self._bytes(token) for token in output.ids[first:]]
        rows = [
            {_shown(self._bytes(token)): logprob for logprob, token in row} for row in tops[first:]
        ]
        return {
            "tokens": [_shown(token) for token in tokens],
            "token_logprobs": list(output.logprobs)[first:],
            "top_logprobs": rows if self.body.logprobs else None,
            "text_offset": [places.of(token) for token in tokens],
        }


class _Places:
    """The place of each token in the text, one after the other."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._next = 0

    def of(self, token: bytes) -> int:
        """Return where a token begins; a part of a character, where the character does."""
        place = self._next
        self._next += len(self._decoder.decode(token))
        return place


def _shown(token: bytes) -> str:
    """Return a token as OpenAI writes it: text, or its bytes if they are a part of a character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
