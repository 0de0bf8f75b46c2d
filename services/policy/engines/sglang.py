"""SGLang over its HTTP API. No other module has its routes; the engine is never imported."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from itertools import zip_longest
from typing import Any

from pydantic_core import to_json

from services.policy.engines import sglang_parsing as parsing
from services.policy.engines.answers import NEVER_UPDATED, check_image_tokens, version_of
from services.policy.engines.http import PAUSE_TIMEOUT_S, PROBE_TIMEOUT_S, HttpEngine
from services.policy.engines.protocol import EngineInfo, Partial, PauseMode, Prompt, Sample
from triforge.clients.transport import (
    post_json,
    request,
    streamed,
)
from triforge.errors import (
    InputError,
    PolicyError,
    TriforgeError,
    WeightsError,
)
from triforge.telemetry import tracing
from triforge.types import BroadcastOffer

_CONNECT_S = 5.0


class SGLangEngine(HttpEngine):
    """Client of one SGLang server; an `Engine`."""

    speaks = "SGLang's API"
    keys = "TRIFORGE_API_KEY and TRIFORGE_ADMIN_API_KEY must be the engine's --api-key and --admin-api-key"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._aborting: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*self._aborting, return_exceptions=True)
        await super().close()

    # ---- requests ----

    async def generate(self, prompts: Sequence[Prompt], adapter: str = "") -> list[Sample]:
        self._demand_tokens(prompts)
        # SGLang takes one n a request, and images or none.
        shares: dict[Hashable, list[int]] = {}
        for position, prompt in enumerate(prompts):
            kind = prompt.n, prompt.images is None, prompt.extras.top_logprobs
            shares.setdefault(kind, []).append(position)
        parts = await asyncio.gather(
            *(self._ask([prompts[i] for i in share], adapter) for share in shares.values())
        )
        answers: list[list[Sample]] = [[] for _ in prompts]
        for share, samples in zip(shares.values(), parts, strict=True):
            for position in share:
                size = prompts[position].n
                answers[position], samples = samples[:size], samples[size:]
        return [sample for samples in answers for sample in samples]

    def _demand_tokens(self, prompts: Sequence[Prompt]) -> None:
        if not all(prompt.ids for prompt in prompts):  # SGLang 0.5.23 ends when it gets one
            raise InputError(
                f"engine {self.url}: given an empty prompt, expected at least one token"
            )

    async def _ask(self, prompts: Sequence[Prompt], adapter: str) -> list[Sample]:
        # The copies that an engine makes of a prompt for its n samples have names of its own choice.
        rids = [uuid.uuid4().hex for _ in prompts] if prompts[0].n == 1 else []
        body = parsing.generate_body(prompts, rids=rids, adapter=adapter, cache_key=self._cache_key)
        try:
            with self._named(), tracing.span("engine /generate", "client", engine=self.url):
                answer = await post_json(self._data, "/generate", body)
        except asyncio.CancelledError:
            self._give_up(rids)
            raise
        return parsing.samples_of(answer, prompts, self.url)

    async def stream(self, prompt: Prompt, adapter: str = "") -> AsyncGenerator[Partial, None]:
        self._demand_tokens([prompt])
        rid = uuid.uuid4().hex
        body = parsing.generate_body(
            [prompt], rids=[rid], adapter=adapter, cache_key=self._cache_key, stream=True
        )
        ended, shown = False, ""
        try:
            with self._named():
                async with streamed(self._data, "POST", "/generate", body=body) as response:
                    async for line in response.aiter_lines():
                        if line.startswith("data: {"):
                            piece = parsing.partial_of(line[6:], prompt, self.url)
                            check_image_tokens(prompt, piece.prompt_tokens, self.url)
                            if not piece.text.startswith(shown):
                                raise PolicyError(
                                    f"engine {self.url}: changed text that it had streamed; ask again without stream"
                                )
                            shown = piece.text
                            yield piece
            ended = True
        finally:
            if not ended:
                self._give_up([rid])

    def _give_up(self, rids: Sequence[str]) -> None:
        """Have the engine abort these requests; SGLang looks for closed connections only every few seconds."""

        async def abort() -> None:
            with contextlib.suppress(TriforgeError):  # gone, or ended meanwhile
                for rid in rids:
                    await self._post("/abort_request", {"rid": rid}, PROBE_TIMEOUT_S)

        if rids:
            task = asyncio.get_running_loop().create_task(abort())
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    async def prompt_logprobs(self, ids: Sequence[int], adapter: str) -> tuple[list[float], int]:
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "extra_key": self._cache_key,
        } | ({"lora_path": adapter} if adapter else {})
        with self._named():
            answer = await post_json(self._data, "/generate", to_json(body))
            return parsing.prompt_logprobs_of(answer, ids, self.url)

    # ---- state ----

    async def health(self) -> None:
        with self._named():
            await request(self._inform, "GET", "/ready")

    async def info(self) -> EngineInfo:
        info = await self._get("/model_info")
        version = version_of(info.get("weight_version", NEVER_UPDATED), self.url)
        return EngineInfo(version=version, model_path=str(info.get("model_path", "")))

    async def pause(self, mode: PauseMode) -> None:
        await self._post("/pause_generation", {"mode": mode}, PAUSE_TIMEOUT_S)

    async def resume(self) -> None:
        await self._post("/continue_generation", {}, PAUSE_TIMEOUT_S)

    async def abort_all(self) -> None:
        await self._post("/abort_request", {"abort_all": True}, PAUSE_TIMEOUT_S)

    async def _about(self) -> dict[str, Any]:
        """Return the engine's description of itself, at the end of a decoding step; nothing if it has no such route."""
        with contextlib.suppress(PolicyError, InputError):
            return await self._get("/server_info", PAUSE_TIMEOUT_S)
        return {}

    async def receivers(self) -> int:
        info = await self._get("/server_info")
        if int(info.get("dp_size") or 1) > 1:
            raise PolicyError(
                f"engine {self.url}: --dp-size is {info['dp_size']}; SGLang receives broadcasts with 1 only"
            )
        return int(info.get("tp_size") or 1)

    async def dtype(self) -> str:
        return str((await self._about()).get("dtype", ""))

    async def rows(self, tensor: str, count: int) -> list[Any] | None:
        try:
            body = {"name": tensor, "truncate_size": count}
            rows = await self._post("/get_weights_by_name", body, PAUSE_TIMEOUT_S)
        except InputError:
            return None
        ranks = int((await self._about()).get("dp_size") or 1)
        # With --dp-size above 1 there is an answer a rank, and null from one that has no such tensor.
        copies = rows if ranks > 1 and isinstance(rows, list) and len(rows) == ranks else [rows]
        return None if all(copy is None for copy in copies) else copies

    # ---- weights ----

    async def release_memory(self) -> None:
        # An engine without a memory saver would answer that it has released, and keep all.
        if not (await self._get("/server_info")).get("enable_memory_saver"):
            raise PolicyError(
                f"engine {self.url}: cannot give its memory back; start SGLang with --enable-memory-saver, or train without "
                "run.colocate"
            )
        await self._post("/release_memory_occupation", {})

    async def resume_memory(self) -> None:
        await self._post("/resume_memory_occupation", {})

    async def load_folder(self, folder: str, version: int, *, flush: bool) -> None:
        self._leave_cache(flush)
        body = {"model_path": folder, "weight_version": str(version), "flush_cache": flush}
        # It answers when an update that was given up is through: two at a time end SGLang's process.
        await self._about()
        await self._command("/update_weights_from_disk", body, f"the folder {folder}")

    async def load_broadcast(
        self, offers: Sequence[BroadcastOffer], rank: int, version: int, *, flush: bool
    ) -> None:
        self._leave_cache(flush)
        what = f"the broadcast of version {version}"
        last = {"weight_version": str(version), "flush_cache": flush}
        await asyncio.gather(*map(_check_listener, offers))
        try:
            for offer in offers:
                where = {
                    "master_address": offer.address, "master_port": offer.port, "rank_offset": rank,
                    "world_size": offer.world_size, "group_name": offer.group, "backend": offer.backend,
                }  # fmt: skip
                await self._command("/init_weights_update_group", where, what)
            # In turns, so that a rank reads its next bucket while others send.
            turns = zip_longest(*([(o.group, b) for b in o.buckets] for o in offers))
            parts = [part for turn in turns for part in turn if part]
            async with self._session():
                for number, (group, bucket) in enumerate(parts, start=1):
                    body = {
                        "group_name": group, **bucket.model_dump(mode="json"),
                        "load_format": "flattened_bucket", "flush_cache": False,
                    } | (last if number == len(parts) else {})  # fmt: skip
                    await self._command("/update_weights_from_distributed", body, what)
        finally:
            for offer in offers:
                with contextlib.suppress(TriforgeError):
                    body = {"group_name": offer.group}
                    await self._post("/destroy_weights_update_group", body, PAUSE_TIMEOUT_S)

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        """Open SGLang's session around an update by parts; close one that was left open first."""
        try:
            await self._command("/begin_weight_update", {}, "a weight update")
        except WeightsError:
            await self._command("/end_weight_update", {}, "the end of an older update")
            await self._command("/begin_weight_update", {}, "a weight update")
        try:
            yield
        except BaseException:
            with contextlib.suppress(TriforgeError):
                await self._post("/end_weight_update", {}, PAUSE_TIMEOUT_S)
            raise
        await self._command("/end_weight_update", {}, "the end of the update")

    async def load_adapter(self, name: str, folder: str) -> None:
        body, what = {"lora_name": name, "lora_path": folder}, f"adapter {name}"
        try:
            await self._command("/load_lora_adapter", body, what)
        except WeightsError as refused:
            try:
                await self.unload_adapter(name)
            except WeightsError:
                raise refused from None
            await self._command("/load_lora_adapter", body, what)

    async def unload_adapter(self, name: str) -> None:
        await self._command("/unload_lora_adapter", {"lora_name": name}, f"to unload {name}")

    # ---- HTTP ----

    async def _command(self, path: str, body: dict[str, Any], what: str) -> None:
        """Call a route that answers whether it has succeeded; `what` the engine was asked to take."""
        try:
            answer = await self._post(path, body)
        except InputError as error:
            raise WeightsError(f"engine {self.url} refuses {what}: {error.detail}") from error
        if not isinstance(answer, dict) or answer.get("success") is not True:
            reason = answer
            if isinstance(answer, dict):
                reason = answer.get("message") or answer.get("error_message")
            raise WeightsError(f"engine {self.url} refuses {what}: {reason}")


async def _check_listener(offer: BroadcastOffer) -> None:
    """Connect before the engine does: one that finds no listener tries for half an hour, and serves nothing meanwhile."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(offer.address, offer.port)
    except (OSError, TimeoutError) as error:
        raise PolicyError(
            f"no process listens at {offer.address}:{offer.port}, where the learner should ({error}); "
            "TRIFORGE_HANDOVER_HOST must be a name under which others reach it"
        ) from error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
