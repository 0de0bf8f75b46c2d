"""One engine, spoken to over SGLang's HTTP API. The engine itself is never imported."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from triforge.clients.transport import (
    UnreachableError,
    get_json,
    http_client,
    post_json,
    request,
)
from triforge.errors import (
    InputError,
    NotFoundError,
    PolicyError,
    TriforgeError,
    UnavailableError,
    WeightsError,
)
from triforge.messages import GenerateOutput, Sampling, VersionSpan

GENERATE_TIMEOUT_S = (
    600.0  # a long answer on a busy CPU engine; the caller's own deadline is shorter
)
CONTROL_TIMEOUT_S = 600.0  # reading a large weight folder
PROBE_TIMEOUT_S = 10.0
# SGLang's name for weights that were never replaced; such an engine counts as version 0.
NEVER_UPDATED = "default"
# `in_place` would keep running requests on the keys and values of the old weights, and SGLang refuses to flush its
# cache then. `retract` puts them back into the queue; they go on with everything recomputed under the new weights.
PAUSE_MODE = "retract"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt for one sample. `stop_ids` end the answer and stay in it."""

    ids: Sequence[int]
    sampling: Sampling
    stop_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer, and how many prompt tokens came from the engine's cache."""

    output: GenerateOutput
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says it serves."""

    version: int
    model_path: str


class SGLangEngine:
    """Client of one engine.

    Args:
        url: address of the engine.
        api_key: key of the generate routes; empty if the engine asks for none.
        admin_api_key: key of the weight and pause routes; empty uses `api_key`.
        transport: replaces the network in tests.
        max_connections: most requests at a time.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        admin_api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
        max_connections: int = 512,
    ) -> None:
        self.url = url.rstrip("/")
        self._data = http_client(
            self.url,
            timeout_s=GENERATE_TIMEOUT_S,
            transport=transport,
            max_connections=max_connections,
            api_key=api_key,
        )
        # Apart from the data connections, so that a pause is never queued behind the requests it should hold.
        self._control = http_client(
            self.url,
            timeout_s=CONTROL_TIMEOUT_S,
            transport=transport,
            max_connections=8,
            api_key=admin_api_key or api_key,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._data.aclose()
        await self._control.aclose()

    async def generate(self, prompts: Sequence[Prompt]) -> list[Sample]:
        """Answer a batch, in order.

        Raises:
            InputError: the engine refuses a prompt (too long, impossible constraint).
            UnavailableError: the engine is gone, starting or overloaded.
            PolicyError: the engine failed or answered nonsense.
        """
        body = json.dumps(
            {
                "input_ids": [list(p.ids) for p in prompts],
                "sampling_params": [sampling_params(p.sampling, p.stop_ids) for p in prompts],
                "return_logprob": True,
            }
        ).encode()
        with self._named():
            found = await post_json(self._data, "/generate", body)
        if not isinstance(found, list) or len(found) != len(prompts):
            shape = f"{len(found)} answers" if isinstance(found, list) else type(found).__name__
            raise PolicyError(
                f"engine {self.url}: expected {len(prompts)} answers to /generate, got {shape}"
            )
        return [self._sample(item) for item in found]

    async def info(self) -> EngineInfo:
        """The weight version that serves, as the engine itself says.

        Raises:
            UnavailableError: the engine is gone or still starting.
            PolicyError: the answer is nonsense, or the version is not a number.
        """
        with self._named():
            await request(self._control, "GET", "/ready", timeout_s=PROBE_TIMEOUT_S)
            found = await get_json(self._control, "/model_info", timeout_s=PROBE_TIMEOUT_S)
        if not isinstance(found, dict):
            raise PolicyError(f"engine {self.url}: /model_info answered {found!r:.120}")
        version = self._version(found.get("weight_version", NEVER_UPDATED))
        return EngineInfo(version=version, model_path=str(found.get("model_path", "")))

    async def load(self, uri: str, version: int) -> None:
        """Replace the weights while requests are held, prove it, and let the requests go on.

        Raises:
            WeightsError: the engine refuses the folder; its old weights serve on.
            UnavailableError: the engine is gone.
            PolicyError: the engine failed, or serves another version afterwards.
        """
        with self._named():
            async with self._paused():
                await self._replace(uri, version)
                found = await self.info()
        if found.version != version:
            raise PolicyError(
                f"engine {self.url}: was told to serve weight version {version}, serves {found.version}"
            )

    async def resume(self) -> None:
        """Let held requests go on. Harmless for an engine that holds none.

        Raises:
            UnavailableError: the engine is gone.
        """
        with self._named():
            await post_json(self._control, "/continue_generation", {})

    async def _replace(self, uri: str, version: int) -> None:
        body = {"model_path": uri, "weight_version": str(version), "flush_cache": True}
        try:
            found = await post_json(self._control, "/update_weights_from_disk", body)
        except InputError as error:
            raise WeightsError(f"engine {self.url} refuses {uri}: {error.detail}") from error
        if not isinstance(found, dict) or found.get("success") is not True:
            reason = found.get("message") if isinstance(found, dict) else found
            raise WeightsError(f"engine {self.url} refuses {uri}: {reason}")

    @contextlib.asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        await post_json(self._control, "/pause_generation", {"mode": PAUSE_MODE})
        try:
            yield
        finally:
            await self.resume()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Every failure names the engine; what is no refusal and no absence is the engine's fault."""
        try:
            yield
        except (UnreachableError, WeightsError, PolicyError):
            raise
        except (InputError, UnavailableError) as error:
            raise type(error)(
                f"engine {self.url}: {error.detail}", retry_after_s=error.retry_after_s
            ) from error
        except NotFoundError as error:
            raise PolicyError(
                f"engine {self.url}: {error.detail}; does it speak SGLang's API?"
            ) from error
        except TriforgeError as error:
            raise PolicyError(f"engine {self.url}: {error.detail}") from error

    def _version(self, text: object) -> int:
        if text == NEVER_UPDATED:
            return 0
        try:
            return int(str(text))
        except ValueError:
            raise PolicyError(
                f"engine {self.url}: weight version {text!r} is not a number; start it with --weight-version 0"
            ) from None

    def _sample(self, item: Any) -> Sample:
        try:
            meta = item["meta_info"]
            pairs = meta["output_token_logprobs"] or ()
            ids = tuple(item["output_ids"])
            finish = meta["finish_reason"]["type"]
            if ids != tuple(pair[1] for pair in pairs):
                raise ValueError("output_ids and output_token_logprobs name different tokens")
            output = GenerateOutput(
                text=item["text"],
                ids=ids,
                logprobs=tuple(pair[0] for pair in pairs),
                versions=self._spans(meta, len(ids)),
                finish=finish,
            )
            return Sample(output, int(meta.get("cached_tokens") or 0))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise PolicyError(
                f"engine {self.url}: /generate answered something unexpected "
                f"({type(error).__name__}: {error}): {item!r:.200}"
            ) from error

    def _spans(self, meta: dict[str, Any], size: int) -> tuple[VersionSpan, ...]:
        """Versions by token, covering [0, size) without a gap; without spans the last version holds for all."""
        raw = meta.get("weight_versions")
        if not raw:
            raw = [{"version": meta["weight_version"], "start": 0, "end": size}]
        spans = tuple(
            VersionSpan(version=self._version(s["version"]), start=s["start"], end=s["end"])
            for s in raw
            if s["start"] < s["end"]
        )
        borders = [0, *(s.end for s in spans)]
        if [s.start for s in spans] != borders[:-1] or borders[-1] != size:
            raise ValueError(f"weight_versions {raw} do not cover the {size} tokens")
        return spans


def sampling_params(sampling: Sampling, stop_ids: Sequence[int]) -> dict[str, Any]:
    """`Sampling` under SGLang's names; what is at its default is left out."""
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
    }
    optional = {
        "top_p": (sampling.top_p, 1.0),
        "top_k": (sampling.top_k, -1),
        "stop": (list(sampling.stop), []),
        "stop_token_ids": (list(stop_ids), []),
        "sampling_seed": (sampling.seed, None),
        "regex": (sampling.regex, None),
        "json_schema": (sampling.json_schema, None),
    }
    params |= {name: value for name, (value, unset) in optional.items() if value != unset}
    return params
