"""Bodies of requests, sampling parameters and prompts, under SGLang's names and with its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json
from starlette.requests import Request

from services.local_engine.images import Media
from triforge.config import JsonSchema, Regex
from triforge.errors import InputError
from triforge.json_text import require_parsable
from triforge.web.bodies import off_loop

_B = TypeVar("_B", bound="Body")
SMALL = 64 * 1024  # bytes of a body
LARGE = 256 * 1024 * 1024
MOST_NUMBERS = 8_000_000  # in a large body, in addition to its strings, lists and objects
_MANY = 2**31
_COLDEST = 1e-6  # below it the choice is greedy, and logits / temperature would overflow
_MAX_STOPS = 32


class UnknownParameterError(InputError):
    """A sampling parameter that this engine does not have."""


class Body(BaseModel):
    """The JSON object of a request. Null is the default of a field; fields that it does not name are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


def explain(error: ValidationError, prefix: str = "") -> str:
    """Return the given value and the expected one of the first field that is wrong."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in (prefix, *first["loc"]) if part != "") or "the body"
    if first["type"] == "missing":
        return f"{name} is missing"
    return f"{name} is {first['input']!r:.80}; {first['msg'].removeprefix('Value error, ')}"


async def read_json(request: Request, *, most: int = SMALL) -> dict[str, Any]:
    """Read a body of at most so many bytes, which must be a JSON object; an empty body is {}."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise InputError(f"the body is larger than {most} bytes")
    content = await off_loop(len(body), partial(_parsed, body))
    if not isinstance(content, dict):
        raise InputError(f"the body is a {type(content).__name__}; expected a JSON object")
    return content


def _parsed(body: bytearray) -> Any:
    require_parsable(body, numbers=MOST_NUMBERS)
    try:
        return from_json(body) if body else {}
    except ValueError as error:
        raise InputError(f"the body is not valid JSON: {error}") from error


async def read(request: Request, kind: type[_B], *, most: int = SMALL) -> _B:
    """Read a body of at most so many bytes as a model of pydantic."""
    try:
        return kind.model_validate(await read_json(request, most=most))
    except ValidationError as error:
        raise InputError(explain(error)) from error


class SamplingParams(BaseModel):
    """Sampling parameters. `max_new_tokens` None fills the context."""

    model_config = ConfigDict(frozen=True, strict=True)

    max_new_tokens: Annotated[int, Field(ge=0, le=_MANY)] | None = 128
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=_MANY)] = -1
    n: Annotated[int, Field(ge=1, le=4096)] = 1
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), max_length=_MAX_STOPS)
    stop_token_ids: Annotated[tuple[int, ...], Field(fail_fast=True)] = ()
    ignore_eos: bool = False
    regex: Regex | None = None
    json_schema: JsonSchema | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: dict[str, float] = Field(default_factory=dict)
    sampling_seed: Annotated[int, Field(ge=-(2**63), le=2**63)] | None = None

    @field_validator("stop", "stop_token_ids", mode="before")
    @classmethod
    def _many(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else (value,) if value != () else value

    @field_validator("temperature")
    @classmethod
    def _greedy(cls, value: float) -> float:
        return 0.0 if value < _COLDEST else value

    @field_validator("logit_bias")
    @classmethod
    def _by_id(cls, value: dict[str, float]) -> dict[str, float]:
        if not all(token.isascii() and token.isdecimal() and len(token) < 12 for token in value):
            raise ValueError("logit_bias: expected ids of tokens")
        return value

    @property
    def shifts(self) -> bool:
        """Whether logits are changed before they are sampled from."""
        return bool(self.frequency_penalty or self.presence_penalty or self.logit_bias)

    @model_validator(mode="after")
    def _one_grammar(self) -> SamplingParams:
        if self.regex is not None and self.json_schema is not None:
            raise ValueError("regex and json_schema exclude each other")
        return self


def parse_sampling(raw: Any) -> SamplingParams:
    """Check `sampling_params` of a request; null means the default of a parameter."""
    if raw is None:
        return SamplingParams()
    if not isinstance(raw, dict):
        raise InputError(f"sampling_params is {raw!r:.80}; expected an object")
    known = SamplingParams.model_fields
    for name in raw.keys() - known:
        raise UnknownParameterError(
            f"sampling_params.{name} is not supported by the local engine; known are {sorted(known)}"
        )
    try:
        return SamplingParams.model_validate(
            {n: v for n, v in raw.items() if v is not None or n == "max_new_tokens"}
        )
    except ValidationError as error:
        raise InputError(explain(error, "sampling_params")) from error


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request as ids, with the fields of its answer. `rid` names it for /abort_request."""

    ids: list[int]
    params: SamplingParams
    rid: str
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    adapter: str | None = None
    media: Media | None = None
