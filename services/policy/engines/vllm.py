"""vLLM over its HTTP API. No other module has its routes; the engine is never imported.

A server needs VLLM_SERVER_DEV_MODE=1 and the options `--enable-scale-out --logprobs-mode processed_logprobs
--return-tokens-as-token-ids`. vLLM's weight version is any text; ours is a number and a folder, as vLLM reports no folder.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from services.policy.engines.answers import (
    UNEXPECTED,
    broken_off,
    end_of,
    nonsense,
    spans_of,
    version_of,
)
from services.policy.engines.discovery import VLLM
from services.policy.engines.http import PAUSE_TIMEOUT_S, HttpEngine
from services.policy.engines.protocol import EngineInfo, Partial, PauseMode, Prompt, Sample, Tops
from triforge.clients.transport import post_json, request, streamed
from triforge.errors import InputError, NotFoundError, PolicyError, WeightsError
from triforge.telemetry import tracing
from triforge.types import BroadcastOffer, VersionSpan

_GENERATE = "/inference/v1/generate"
_PREFIX = "token_id:"  # of ids in the place of tokens
_NOT_WHOLE = "-1"  # the version of weights that are being replaced; no answer may have it


class VLLMEngine(HttpEngine):
    """Client of one vLLM server; an `Engine`. vLLM has one key, and asks for none on its routes that pause and load."""

    scheme = VLLM
    speaks = "vLLM's API, with VLLM_SERVER_DEV_MODE=1"
    keys = "TRIFORGE_API_KEY must be the engine's --api-key, and it needs --enable-scale-out"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options | {"admin_api_key": ""})
        self._checked = False

    # ---- requests ----

    async def generate(self, prompts: Sequence[Prompt], adapter: str = "") -> list[Sample]:
        answers = await asyncio.gather(*(self._samples(prompt, adapter) for prompt in prompts))
        return [sample for samples in answers for sample in samples]

    async def _samples(self, prompt: Prompt, adapter: str) -> list[Sample]:
        with self._named(), tracing.span(f"engine {_GENERATE}", "client", engine=self.url):
            answer = await post_json(self._data, _GENERATE, to_json(self._body(prompt, adapter)))
        with self._understood(answer):
            if len(answer["choices"]) != prompt.n:
                raise ValueError(f"{len(answer['choices'])} answers, expected {prompt.n}")
            wholes = [self._partial(c, answer["usage"], prompt) for c in answer["choices"]]
            return [Sample(w.output(), w.cached_tokens, w.prompt_tokens, w.tops) for w in wholes]

    async def stream(self, prompt: Prompt, adapter: str = "") -> AsyncGenerator[Partial, None]:
        # vLLM ends the request of a connection that is closed.
        body = to_json(self._body(prompt, adapter, stream=True))
        written: dict[str, Any] = {
            "text": "", "token_ids": [], "logprobs": {"content": []}, "finish_reason": None,
        }  # fmt: skip
        with self._named():
            async with streamed(self._data, "POST", _GENERATE, body=body) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    with self._understood(line):
                        event = from_json(line[6:])
                        if "error" in event:
                            raise broken_off(event["error"], self.url)
                        for choice in event["choices"]:
                            _add(choice, written)
                        # The last event has the counts of the whole answer, and no choice.
                        piece = self._partial(written, event["usage"], prompt)
                    if piece.finish is None or not event["choices"]:
                        yield piece

    def _body(self, prompt: Prompt, adapter: str, *, stream: bool = False) -> dict[str, Any]:
        if prompt.images is not None:
            raise InputError(
                f"engine {self.url}: vLLM is asked about text only, and the prompt has images"
            )
        sampling, extras = prompt.sampling, prompt.extras
        grammars = {"regex": sampling.regex, "json": sampling.json_schema}
        optional = {
            "n": (prompt.n, 1),
            "top_p": (sampling.top_p, 1.0),
            "top_k": (sampling.top_k, -1),
            "stop": (list(sampling.stop), []),
            "stop_token_ids": (list(prompt.stop_ids), []),
            "seed": (sampling.seed, None),
            "frequency_penalty": (extras.frequency_penalty, 0.0),
            "presence_penalty": (extras.presence_penalty, 0.0),
            "logit_bias": ({str(token): bias for token, bias in extras.logit_bias}, {}),
            "structured_outputs": ({k: v for k, v in grammars.items() if v is not None}, {}),
        }
        params = {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            # The drawn token is counted among them, and vLLM gives 20 at most.
            "logprobs": extras.top_logprobs and min(extras.top_logprobs + 1, 20),
            **{name: value for name, (value, unset) in optional.items() if value != unset},
        }
        usage = {"include_usage": True, "continuous_usage_stats": True}
        more = {"stream": True, "stream_options": usage} if stream else {}
        return self._request(prompt.ids, params, adapter) | more

    def _request(self, ids: Sequence[int], params: dict[str, Any], adapter: str) -> dict[str, Any]:
        body = {"token_ids": list(ids), "sampling_params": params, "output_mode": "text"}
        return body | {"cache_salt": self._cache_key} | ({"model": adapter} if adapter else {})

    def _partial(self, choice: dict[str, Any], usage: dict[str, Any], prompt: Prompt) -> Partial:
        """Return what is written of an answer; ValueError and its like if it cannot be read."""
        ids, entries = tuple(choice["token_ids"]), choice["logprobs"]["content"]
        finish, text = choice["finish_reason"], choice["text"]
        spans: tuple[VersionSpan, ...] = ()
        if len(ids) != len(entries):
            raise ValueError(f"{len(entries)} log-probabilities of {len(ids)} tokens")
        if finish is not None:
            finish, text = end_of(finish, text, ids, prompt)
            parts = choice["weight_versions"] or ()
            spans = spans_of(
                [p | {"version": _split(p["version"])[0]} for p in parts], len(ids), self.url
            )
        return Partial(
            text=text, ids=ids, logprobs=tuple(entry["logprob"] for entry in entries), versions=spans,
            prompt_tokens=int(usage["prompt_tokens"]),
            cached_tokens=(usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
            finish=finish, tops=_tops(entries, prompt.extras.top_logprobs),
        )  # fmt: skip

    async def prompt_logprobs(self, ids: Sequence[int], adapter: str) -> tuple[list[float], int]:
        params = {"max_tokens": 1, "temperature": 1.0, "logprobs": 0, "prompt_logprobs": 0}
        with self._named():
            answer = await post_json(
                self._data, _GENERATE, to_json(self._request(ids, params, adapter))
            )
        with self._understood(answer):
            rows = zip(answer["prompt_logprobs"][1:], ids[1:], strict=True)
            last = answer["choices"][0]["weight_versions"][-1]["version"]
            return [row[str(token)]["logprob"] for row, token in rows], version_of(_split(last)[0], self.url)  # fmt: skip

    # ---- state ----

    async def health(self) -> None:
        with self._named():
            await request(self._inform, "GET", "/health")
        if not self._checked:
            config = await self._config()
            lora = config.get("lora_config")
            if config["model_config"].get("logprobs_mode") != "processed_logprobs":
                raise self._misconfigured("--logprobs-mode processed_logprobs")
            # Else vLLM ends when a prompt is scored with an adapter, as its weights are verified.
            if lora and "lm_head" in (lora.get("target_modules") or ("lm_head",)):
                raise self._misconfigured("--lora-target-modules, without lm_head")
            self._checked = True

    def _misconfigured(self, expected: str) -> PolicyError:
        return PolicyError(f"engine {self.url}: vLLM was started without {expected}")

    async def _config(self) -> dict[str, Any]:
        about = await self._get("/server_info?config_format=json", PAUSE_TIMEOUT_S)
        with self._understood(about):
            return dict(about["vllm_config"])

    async def info(self) -> EngineInfo:
        number, folder = _split((await self._get("/weight_info")).get("weight_version"))
        if not folder:
            roots = [
                str(card.get("root")) for card in await self._models() if not card.get("parent")
            ]
            folder = roots[0] if roots else ""
        return EngineInfo(version_of(number, self.url), folder)

    async def pause(self, mode: PauseMode) -> None:
        held = "abort" if mode == "abort" else "keep"
        await self._post(f"/pause?mode={held}&clear_cache=false", {}, PAUSE_TIMEOUT_S)

    async def resume(self) -> None:
        await self._post("/resume", {}, PAUSE_TIMEOUT_S)

    async def abort_all(self) -> None:
        await self._post("/abort_requests", {}, PAUSE_TIMEOUT_S)

    async def release_memory(self) -> None:
        await self._name(_NOT_WHOLE)
        await self._post("/sleep?level=2&mode=abort", {})

    async def resume_memory(self) -> None:
        await self._post("/wake_up", {})

    async def load_folder(self, folder: str, version: int, *, flush: bool) -> None:
        self._leave_cache(flush)
        # A load that fails or breaks off leaves weights behind that are not whole.
        await self._name(_NOT_WHOLE)
        with self._accepted(f"the folder {folder}"):
            body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
            await self._post("/collective_rpc", body)
            if flush:
                await self._post("/reset_prefix_cache?reset_running_requests=true", {})
        await self._name(f"{version} {folder}")

    async def _name(self, version: str) -> None:
        await self._post("/update_weight_version", {"new_version": version}, PAUSE_TIMEOUT_S)

    async def load_broadcast(
        self, offers: Sequence[BroadcastOffer], rank: int, version: int, *, flush: bool
    ) -> None:
        raise self._no_broadcast()

    async def receivers(self) -> int:
        raise self._no_broadcast()

    def _no_broadcast(self) -> PolicyError:
        return PolicyError(f"engine {self.url}: vLLM cannot receive the learner's broadcast; it reads folders")  # fmt: skip

    async def rows(self, tensor: str, count: int) -> list[Any] | None:
        return None

    async def dtype(self) -> str:
        return str((await self._config())["model_config"].get("dtype", "")).removeprefix("torch.")

    async def load_adapter(self, name: str, folder: str) -> None:
        # An adapter of that name and folder may have other weights than the one before.
        self._leave_cache(flush=False)
        body = {"lora_name": name, "lora_path": folder, "load_inplace": True}
        await self._adapter("/v1/load_lora_adapter", body, f"adapter {name}")

    async def unload_adapter(self, name: str) -> None:
        await self._adapter("/v1/unload_lora_adapter", {"lora_name": name}, f"to unload {name}")

    async def _adapter(self, path: str, body: dict[str, Any], what: str) -> None:
        with self._accepted(what), self._named():
            await request(self._control, "POST", path, body=body)

    # ---- errors ----

    @contextlib.contextmanager
    def _accepted(self, what: str) -> Iterator[None]:
        try:
            yield
        except (InputError, PolicyError) as error:
            reason = error.detail.removeprefix(f"engine {self.url}: ")
            raise WeightsError(f"engine {self.url} refuses {what}: {reason}") from error

    @contextlib.contextmanager
    def _understood(self, answer: Any) -> Iterator[None]:
        try:
            yield
        except UNEXPECTED as error:
            raise nonsense(self.url, "an answer is unexpected", error, answer) from error

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        with super()._named():
            try:
                yield
            except NotFoundError as error:
                if error.detail.startswith("The model"):  # an adapter that it does not have
                    raise InputError(error.detail) from error
                raise


def _add(choice: dict[str, Any], written: dict[str, Any]) -> None:
    """Add a piece of a streamed answer to what was written before."""
    written["text"] += choice["text"]
    written["token_ids"] += choice["token_ids"]
    written["logprobs"]["content"] += choice["logprobs"]["content"]
    written |= {name: choice[name] for name in ("finish_reason", "weight_versions")}


def _tops(entries: Sequence[dict[str, Any]], count: int) -> Tops:
    """Return the likeliest alternatives of each token: the drawn one comes first in vLLM's list, whatever its rank."""
    if not count:
        return ()
    rows = [[(top["logprob"], _id(top["token"])) for top in entry["top_logprobs"]] for entry in entries]  # fmt: skip
    return tuple(tuple(sorted(row, key=lambda pair: -pair[0])[:count]) for row in rows)


def _id(token: str) -> int:
    if not token.startswith(_PREFIX):
        raise ValueError(f"token {token!r} has no id: start vLLM with --return-tokens-as-token-ids")
    return int(token.removeprefix(_PREFIX))


def _split(version: Any) -> tuple[str, str]:
    """Return the number and the folder of a weight version."""
    number, _, folder = str(version).partition(" ")
    return number, folder
