"""OpenAI's dialect, the part that chat and plain completions share: the fields of requests, and the frame of answers.

In addition to the standard fields a request may carry `regex`, `top_k`, `stop_token_ids` and `affinity`, and an answer carries
`metadata.weight_version`. Unknown fields, and unsupported ones that would change the answer, are refused.
"""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.policy.api.calls.parser import CallParser
from services.policy.api.streams import Dialect, event
from services.policy.engines.protocol import Extras, Partial, Tops
from services.policy.gateway import Answer
from triforge.errors import NotFoundError
from triforge.rendering import Renderer
from triforge.types import GenerateOutput, Sampling, VersionSpan
from triforge.web.problems import input_error

Tokens = Annotated[int, Field(ge=1, le=131072)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
_Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
_R = TypeVar("_R", bound="OpenAIRequest")


class Strict(BaseModel):
    """An object of a request. Null fields and `ignored` ones change nothing.

    Fields that are `unsupported` are refused unless they are empty, and unknown ones always.
    """

    model_config = ConfigDict(extra="forbid")
    ignored: ClassVar[tuple[str, ...]] = ()
    unsupported: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_ignored(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        refused = [name for name in cls.unsupported if not _is_empty(body.get(name))]
        if refused:
            raise ValueError(f"{', '.join(refused)}: not supported by this endpoint; leave out")
        dropped = {*cls.ignored, *cls.unsupported}
        return {k: v for k, v in body.items() if v is not None and k not in dropped}


def _is_empty(value: Any) -> bool:
    return not (any(value.values()) if isinstance(value, dict) else value)


class _StreamOptions(Strict):
    ignored = ("include_obfuscation",)

    include_usage: bool = False


class OpenAIRequest(Strict):
    """The fields that chat and plain completions share."""

    ignored = (
        "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "metadata", "service_tier",
    )  # fmt: skip
    # Known to OpenAI or SGLang.
    unsupported = (
        "audio", "best_of", "echo", "function_call", "functions", "min_p", "prediction", "reasoning_effort",
        "repetition_penalty", "store", "suffix", "verbosity", "web_search_options",
    )  # fmt: skip

    model: str = ""
    n: Annotated[int, Field(ge=1, le=64)] = 1
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    max_tokens: Tokens | None = None
    stop: str | tuple[str, ...] = ()
    stop_token_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(fail_fast=True)] = ()
    seed: int | None = None
    frequency_penalty: _Penalty = 0.0
    presence_penalty: _Penalty = 0.0
    logit_bias: dict[int, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = None
    regex: str | None = None
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    affinity: str = ""

    def parser(self, renderer: Renderer) -> CallParser:
        """Return the reader of the model's answers."""
        return CallParser()

    @property
    def wants_logprobs(self) -> bool:
        """Whether tokens are answered with log-probabilities."""
        return False

    def sampling(self, **more: Any) -> Sampling:
        """Return the options of sampling; `more` are fields of `Sampling`. None leaves a field at its default."""
        fields = {
            "max_new_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop,
            "stop_token_ids": self.stop_token_ids,
            "seed": self.seed,
            "regex": self.regex,
            **more,
        }
        try:
            return Sampling.model_validate({k: v for k, v in fields.items() if v is not None})
        except ValidationError as error:
            raise input_error(error) from None

    def extras(self) -> Extras:
        """Return the options of the engine that `Sampling` does not have."""
        bias = tuple((self.logit_bias or {}).items())
        return Extras(self.frequency_penalty, self.presence_penalty, bias)


def demand_model(name: str, role: str) -> None:
    """Raise NotFoundError for another model than the service's."""
    if name != role:
        raise NotFoundError(
            f"model: given {name[:80]!r}, expected {role!r}, the one model of this service"
        )


def model_card(*, role: str, version: int, uri: str) -> dict[str, Any]:
    """Return the body of `GET /v1/models/{model}`."""
    metadata = {"weight_version": str(version)}
    card = {"id": role, "object": "model", "created": 0, "owned_by": "triforge"}
    return {**card, "root": uri, "metadata": metadata}


class OpenAIDialect(Dialect[_R]):
    """Objects and chunks of chat and plain completions: `object` and `chunk` are their kinds, `prefix` begins their ids."""

    object: ClassVar[str]
    chunk: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(
        self, body: _R, *, model: str, renderer: Renderer, version: int, name: str = ""
    ) -> None:
        super().__init__(body, model=model, renderer=renderer, version=version, name=name)
        self._head = self._fields(self.chunk, version)

    def _fields(self, kind: str, version: int | None) -> dict[str, Any]:
        """Return the first fields of an object or chunk; `version` is the newest weight version in it."""
        return {
            "id": f"{self.prefix}-{self.name or uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "metadata": {"weight_version": None if version is None else str(version)},
        }

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        outputs = [
            pair
            for answer in answers
            for pair in zip(answer.reply.outputs, answer.tops, strict=True)
        ]
        version = _newest([span for output, _ in outputs for span in output.versions])
        choices = [
            {"index": index, **self._choice(index, output, tops)}
            for index, (output, tops) in enumerate(outputs)
        ]
        usage = _usage(*self.counts(answers))
        return {**self._fields(self.object, version), "choices": choices, "usage": usage}

    @abstractmethod
    def _choice(self, number: int, output: GenerateOutput, tops: Tops) -> dict[str, Any]:
        """Return one choice of a whole answer."""

    def _chunk(
        self, number: int, *, logprobs: Any = None, finish: str | None = None, **content: Any
    ) -> str:
        choice = {"index": number, **content, "finish_reason": finish, "logprobs": logprobs}
        return event({**self._head, "choices": [choice]})

    def _bytes(self, token: int) -> bytes:
        return self._renderer.token_bytes(token)

    def _note_version(self, piece: Partial) -> None:
        """Report the newest weight version of a sample that has ended from here on."""
        version = _newest(piece.versions)
        if version is not None:
            self._head["metadata"] = {"weight_version": str(version)}

    def end(self) -> Iterable[str]:
        if self.body.stream_options.include_usage:
            usage = _usage(*self.streamed_counts())
            yield event({**self._head, "choices": [], "usage": usage})
        yield "data: [DONE]\n\n"


def _newest(spans: Sequence[VersionSpan]) -> int | None:
    return max((span.version for span in spans), default=None)


def _usage(prompt: int, sampled: int, cached: int) -> dict[str, Any]:
    """Return token counts; those of a prompt once, however many samples it had."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
