"""One engine, spoken to over SGLang's HTTP API. The engine itself is never imported."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from services.policy.sglang_parsing import (
    NEVER_UPDATED,
    Partial,
    Prompt,
    Sample,
    check_seen,
    generate_body,
    partial_of,
    probe_body,
    prompt_logprobs_of,
    samples_of,
    says_too_long,
    stream_body,
    version_of,
)
from triforge.clients.hot_path import JsonPost, stream_lines
from triforge.clients.transport import (
    UnreachableError,
    get_json,
    http_client,
    post_json,
    request,
)
from triforge.errors import (
    ConfigError,
    ContextFullError,
    InputError,
    NotFoundError,
    PolicyError,
    TriforgeError,
    UnavailableError,
    WeightsError,
)
from triforge.telemetry import tracing

TIMEOUT_S = 600.0  # a long answer on a busy CPU engine, or reading a large weight folder
PAUSE_TIMEOUT_S = (
    60.0  # the end of a decoding step; an engine that takes longer hangs, and others wait for it
)
PROBE_TIMEOUT_S = 10.0


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
        timeout_s: longest silence while an answer is awaited, or weights are read.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        admin_api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
        max_connections: int = 512,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.url = url.rstrip("/")
        self.answered: int | None = None  # weight version of the last answer
        self.paused_s = 0.0  # how long requests were held for updates, all in all
        self._post = JsonPost(
            self.url,
            "/generate",
            timeout_s=timeout_s,
            transport=transport,
            max_connections=max_connections,
            api_key=api_key,
        )
        # Apart from the data connections, so that a pause is never queued behind the requests it should hold.
        self._control = http_client(
            self.url,
            timeout_s=max(timeout_s, TIMEOUT_S),
            transport=transport,
            max_connections=8,
            api_key=admin_api_key or api_key,
        )
        # SGLang tells who it is to the key of the generate routes only.
        self._inform = http_client(
            self.url,
            timeout_s=PROBE_TIMEOUT_S,
            transport=transport,
            max_connections=4,
            api_key=api_key,
        )
        self._aborting: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*self._aborting, return_exceptions=True)
        await self._post.close()
        await self._control.aclose()
        await self._inform.aclose()

    async def generate(self, prompts: Sequence[Prompt], adapter: str = "") -> list[Sample]:
        """Answer a batch, in order.

        Args:
            prompts: at least one.
            adapter: name of the adapter to answer with; empty for none.

        Raises:
            InputError: the engine refuses a prompt (too long, impossible constraint).
            UnavailableError: the engine is gone, starting or overloaded.
            PolicyError: the engine failed or answered nonsense.
        """
        shares: dict[Hashable, list[int]] = {}
        for position, prompt in enumerate(prompts):
            shares.setdefault(self._together(prompt), []).append(position)
        if len(shares) == 1:
            return await self._ask(prompts, adapter)
        parts = await asyncio.gather(
            *(self._ask([prompts[i] for i in share], adapter) for share in shares.values())
        )
        found: dict[int, list[Sample]] = {}
        for share, samples in zip(shares.values(), parts, strict=True):
            size = prompts[share[0]].n
            for number, position in enumerate(share):
                found[position] = samples[number * size : (number + 1) * size]
        return [sample for position in sorted(found) for sample in found[position]]

    async def stream(self, prompt: Prompt, adapter: str = "") -> AsyncGenerator[Partial, None]:
        """Answer one prompt with one sample, as it is written. Errors: see `generate`, before or between pieces."""
        rid = uuid.uuid4().hex
        ended = False
        try:
            with self._named():
                async for line in stream_lines(
                    self._post.client, "/generate", stream_body(prompt, rid, adapter)
                ):
                    if line.startswith("data: {"):
                        piece = partial_of(line[6:], self.url)
                        check_seen(prompt, piece.prompt_tokens, self.url)
                        yield piece
            ended = True
        finally:
            if not ended:
                self._give_up([rid])

    def _together(self, prompt: Prompt) -> Hashable:
        """Prompts for which this is equal may travel in one request: SGLang wants one n a request, and images or none."""
        return prompt.n, prompt.pictures is None

    def _body(self, prompts: Sequence[Prompt], rids: Sequence[str], adapter: str) -> bytes:
        return generate_body(prompts, rids, adapter=adapter)

    async def prompt_logprobs(self, ids: Sequence[int], adapter: str) -> list[float]:
        """Log-probability of each id but the first, given those before it, with an adapter. Errors: see `generate`."""
        with self._named():
            return prompt_logprobs_of(await self._post(probe_body(ids, adapter)), ids, self.url)

    async def adapters(self) -> dict[str, str]:
        """The adapters that the engine holds, and their folders. Errors: see `control`."""
        with self._named():
            found = await get_json(self._inform, "/v1/models")
        cards = found.get("data") if isinstance(found, dict) else None
        return {
            str(card.get("id")): str(card.get("root"))
            for card in cards or ()
            if isinstance(card, dict) and card.get("parent")
        }

    async def _ask(self, prompts: Sequence[Prompt], adapter: str) -> list[Sample]:
        # The copies that an engine makes of a prompt for its n samples have names of its own choice.
        rids = [uuid.uuid4().hex for _ in prompts] if prompts[0].n == 1 else []
        try:
            body = self._body(prompts, rids, adapter)
            with self._named():
                found = await (self._traced(body) if tracing.is_on() else self._post(body))
        except asyncio.CancelledError:
            self._give_up(rids)
            raise
        return samples_of(found, prompts, self.url)

    async def _traced(self, body: bytes) -> Any:
        with tracing.span("engine /generate", "client", engine=self.url):
            return await self._post(body)

    def _give_up(self, rids: Sequence[str]) -> None:
        """Tell the engine, in the background, that nobody waits for these answers any more.

        Closing the connection tells it, too, but SGLang looks for that only every few seconds.
        """
        if rids:
            task = asyncio.get_running_loop().create_task(self._abort(rids))
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    async def _abort(self, rids: Sequence[str]) -> None:
        # It may be gone, or the answer may have ended meanwhile: then nothing is left to abort.
        with contextlib.suppress(TriforgeError):
            for rid in rids:
                await post_json(
                    self._control, "/abort_request", {"rid": rid}, timeout_s=PROBE_TIMEOUT_S
                )

    async def info(self, *, paused: bool = False) -> EngineInfo:
        """The weight version that serves, as the engine itself says.

        Args:
            paused: it is paused by us; SGLang calls itself not ready then.

        Raises:
            UnavailableError: the engine is gone or still starting.
            PolicyError: the answer is nonsense, or the version is not a number.
        """
        with self._named():
            if not paused:
                await request(self._inform, "GET", "/ready")
            found = await get_json(self._inform, "/model_info")
        if not isinstance(found, dict):
            raise PolicyError(f"engine {self.url}: /model_info answered {found!r:.120}")
        version = version_of(found.get("weight_version", NEVER_UPDATED), self.url)
        return EngineInfo(version=version, model_path=str(found.get("model_path", "")))

    async def resume(self) -> None:
        """Let held requests go on. Harmless for an engine that holds none.

        Raises:
            UnavailableError: the engine is gone.
        """
        with self._named():
            await post_json(self._control, "/continue_generation", {}, timeout_s=PAUSE_TIMEOUT_S)

    async def control(self, path: str, body: dict[str, Any]) -> Any:
        """POST to one of the routes that pause, load and inform; returns the parsed answer.

        Raises:
            InputError: the engine refuses; its own sentence says why.
            UnavailableError: the engine is gone.
            PolicyError: the engine failed, or does not know the route or the key.
        """
        with self._named():
            return await post_json(self._control, path, body)

    async def command(self, path: str, body: dict[str, Any], what: str) -> None:
        """`control` with an answer that says whether it was done.

        Args:
            path: the route.
            body: of the request.
            what: what the engine was asked to take, for the error.

        Raises:
            WeightsError: the engine refuses.
            UnavailableError: the engine is gone.
            PolicyError: the engine failed, or does not know the route or the key.
        """
        try:
            found = await self.control(path, body)
        except InputError as error:
            raise WeightsError(f"engine {self.url} refuses {what}: {error.detail}") from error
        if not isinstance(found, dict) or found.get("success") is not True:
            reason = found
            if isinstance(found, dict):
                reason = found.get("message") or found.get("error_message")
            raise WeightsError(f"engine {self.url} refuses {what}: {reason}")

    async def server_info(self) -> dict[str, Any]:
        """What the engine says of itself. Errors: see `control`."""
        with self._named():
            found = await get_json(self._inform, "/server_info")
        return found if isinstance(found, dict) else {}

    async def abort_all(self) -> None:
        """End every request of the engine, whoever made it. Errors: see `control`."""
        with self._named():
            await request(self._control, "POST", "/abort_request", body={"abort_all": True})

    @contextlib.asynccontextmanager
    async def paused(self, mode: str) -> AsyncIterator[None]:
        """Hold (`retract`, `in_place`) or end (`abort`) the running requests; they go on at the end."""
        begun = time.monotonic()
        with self._named():
            body = {"mode": mode}
            await post_json(self._control, "/pause_generation", body, timeout_s=PAUSE_TIMEOUT_S)
        try:
            yield
        finally:
            await self.resume()
            self.paused_s += time.monotonic() - begun

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Every failure names the engine; what is no refusal and no absence is the engine's fault."""
        try:
            yield
        except (UnreachableError, WeightsError, PolicyError):
            raise
        except (InputError, UnavailableError) as error:
            kind = ContextFullError if says_too_long(error.detail) else type(error)
            raise kind(
                f"engine {self.url}: {error.detail}", retry_after_s=error.retry_after_s
            ) from error
        except NotFoundError as error:
            raise PolicyError(
                f"engine {self.url}: {error.detail}; does it speak SGLang's API?"
            ) from error
        except ConfigError as error:
            raise PolicyError(
                f"engine {self.url} refuses the key ({error.detail}): TRIFORGE_API_KEY and TRIFORGE_ADMIN_API_KEY must be "
                "the engine's --api-key and --admin-api-key"
            ) from error
        except TriforgeError as error:
            raise PolicyError(f"engine {self.url}: {error.detail}") from error
