"""The interface of an inference engine.

`sglang.py` and `vllm.py` are the implementations; a new engine is one more file with a class like this, which `build_pool` in
`__main__` makes. Nothing outside of an implementation has routes, field names or formats of an engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from triforge.errors import PolicyError
from triforge.types import BroadcastOffer, GenerateOutput, Sampling, VersionSpan

PauseMode = Literal["retract", "in_place", "abort"]


class LostEngineError(PolicyError):
    """The engine cannot be trusted with requests now: the weight sync has to look at it."""


@dataclass(frozen=True, slots=True)
class Images:
    """The images of a prompt as `data:` URIs, and its ids with one token for each of them."""

    ids: Sequence[int]
    data: Sequence[str]


@dataclass(frozen=True, slots=True)
class Extras:
    """Options of OpenAI's dialect that `Sampling` does not have. An engine refuses those that it lacks (InputError)."""

    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int = 0


# a token's likeliest alternatives: log-probabilities and ids
Tops = tuple[tuple[tuple[float, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt for `n` samples. `stop_ids` end an answer and stay in it."""

    ids: Sequence[int]
    sampling: Sampling
    stop_ids: Sequence[int] = ()
    n: int = 1
    images: Images | None = None
    extras: Extras = Extras()


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer, and the tokens of its prompt: from the engine's cache, and all that it counts (0: not reported)."""

    output: GenerateOutput
    cached_tokens: int
    prompt_tokens: int = 0
    tops: Tops = ()


@dataclass(frozen=True, slots=True)
class Partial:
    """The part of an answer that is written so far. `finish` is None while it goes on; `versions` come with the end."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    prompt_tokens: int
    cached_tokens: int
    finish: Literal["stop", "length", "abort"] | None
    tops: Tops = ()

    @staticmethod
    def of(output: GenerateOutput, prompt_tokens: int) -> Partial:
        """Return an output as the only piece of a stream."""
        return Partial(
            output.text, output.ids, output.logprobs, output.versions, prompt_tokens, 0, output.finish
        )  # fmt: skip

    def output(self) -> GenerateOutput:
        """Return the last piece as a whole output."""
        assert self.finish is not None
        return GenerateOutput(
            text=self.text, ids=self.ids, logprobs=self.logprobs, versions=self.versions, finish=self.finish
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The weights that an engine reports; version -1 while they are not whole."""

    version: int
    model_path: str


class Engine(Protocol):
    """One engine. Every error names it.

    All calls raise UnavailableError when the engine is away (UnreachableError), starting or overloaded, and PolicyError when
    it fails or answers nonsense; those that load raise WeightsError when it refuses.
    """

    url: str

    async def close(self) -> None:
        """Close all connections."""

    async def generate(self, prompts: Sequence[Prompt], adapter: str = "") -> list[Sample]:
        """Answer a batch, in order, with an adapter or none. InputError: it refuses a prompt (ContextFullError: too long)."""

    def stream(self, prompt: Prompt, adapter: str = "") -> AsyncGenerator[Partial, None]:
        """Answer one prompt with one sample, as it is written; each text begins with the one before.

        Errors: see `generate`, before or between pieces.
        """

    async def prompt_logprobs(self, ids: Sequence[int], adapter: str) -> tuple[list[float], int]:
        """Return the log-probability of each id but the first, given those before it, and the version at the end. Errors: see `generate`."""

    async def health(self) -> None:
        """Raise UnavailableError unless it takes requests: neither starting nor paused."""

    async def info(self) -> EngineInfo:
        """Return the weights that it holds; also while it is paused."""

    async def pause(self, mode: PauseMode) -> None:
        """Hold (`retract`, `in_place`) or end (`abort`) the running requests."""

    async def resume(self) -> None:
        """Let held requests go on. Harmless for an engine that holds none."""

    async def abort_all(self) -> None:
        """End every request of every client."""

    async def release_memory(self) -> None:
        """Give the memory of weights and cache back, while paused and without requests. PolicyError: it cannot."""

    async def resume_memory(self) -> None:
        """Take released memory again. Its content is undefined: weights have to be loaded before a request."""

    async def load_folder(self, folder: str, version: int, *, flush: bool) -> None:
        """Read weights from a folder, while paused. `flush` drops what is cached of older ones; else later requests do not use it."""

    async def load_broadcast(
        self, offers: Sequence[BroadcastOffer], rank: int, version: int, *, flush: bool
    ) -> None:
        """Receive the parts of new weights, as first rank `rank` of the group of each; see `load_folder`."""

    async def receivers(self) -> int:
        """Return how many processes take part in a broadcast; PolicyError if it cannot receive."""

    async def rows(self, tensor: str, count: int) -> list[Any] | None:
        """Return the first rows of a tensor, once for each copy that the engine holds; None if it cannot show it."""

    async def dtype(self) -> str:
        """Return the type in which it computes; empty if it does not report one."""

    async def adapters(self) -> dict[str, str]:
        """Return the adapters that it holds, and their folders."""

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load an adapter; an older one of that name is unloaded."""

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter, once its last request has ended."""
