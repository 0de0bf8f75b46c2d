"""What chat and plain completions have in common in the OpenAI dialect: the model, the sampling, and what is refused."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from services.policy.engines.protocol import Extras
from triforge.errors import NotFoundError
from triforge.types import Sampling

# Known to OpenAI or SGLang and not done here; neither is said with their empty values.
_UNSUPPORTED: Final = (
    "audio", "best_of", "echo", "function_call", "functions", "min_p", "prediction", "reasoning_effort",
    "repetition_penalty", "store", "suffix", "verbosity", "web_search_options",
)  # fmt: skip

_Penalty = Annotated[float, Field(ge=-2.0, le=2.0)] | None
_Tokens = Annotated[int, Field(ge=1, le=131072)] | None


class Strict(BaseModel):
    """Refuses fields that it does not know."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(Strict):
    """What a stream has beside its answer."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class OpenAIRequest(Strict):
    """The fields that both dialects have. A field that is neither here nor in a subclass is refused."""

    model: str = ""
    n: Annotated[int, Field(ge=1, le=64)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    max_tokens: _Tokens = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)] | None = (
        None
    )
    seed: int | None = None
    frequency_penalty: _Penalty = None
    presence_penalty: _Penalty = None
    logit_bias: dict[int, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = None
    regex: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    affinity: str = ""
    # These change nothing of an answer.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        refused = [name for name in _UNSUPPORTED if given.get(name)]
        if refused:
            raise ValueError(f"{', '.join(refused)}: not supported by this endpoint; leave out")
        return {name: value for name, value in given.items() if name not in _UNSUPPORTED}

    def sampling(self, **more: Any) -> Sampling:
        """How to sample; `more` are fields of `Sampling` by name. What is None is left to its default."""
        given = {
            "max_new_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            "stop_token_ids": self.stop_token_ids,
            "seed": self.seed,
            "regex": self.regex,
            **more,
        }
        return Sampling.model_validate({k: v for k, v in given.items() if v is not None})

    def extras(self, top_logprobs: int | None = None) -> Extras:
        """What is asked of the engine beside `Sampling`."""
        return Extras(
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            logit_bias=tuple((self.logit_bias or {}).items()),
            top_logprobs=top_logprobs or 0,
        )

    @property
    def counts_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)


def demand_model(name: str, role: str) -> None:
    """NotFoundError for a model that is not the one of a service."""
    if name != role:
        raise NotFoundError(
            f"model: given {name[:80]!r}, expected {role!r}, the one model of this service"
        )
