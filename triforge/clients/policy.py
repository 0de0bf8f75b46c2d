"""Typed client of a policy service."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import httpx
from pydantic import BaseModel, ValidationError

from triforge.clients.transport import bearer, get_json, http_client, request
from triforge.config import Settings
from triforge.errors import InputError, PolicyError, TooLargeError, UnavailableError
from triforge.event_loop import together
from triforge.telemetry import known, tracing
from triforge.telemetry.ids import Ids, common, only
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    Role,
    Sampling,
    WeightsState,
    WeightsUpdate,
)

# Sampling again is harmless, so a lost or refused request is sent again for this long.
PATIENCE_S = 60.0
# A service that says 429 lives and will come to it: callers slow down and do not fail. Their own deadlines end the wait.
BUSY_S = 3600.0
TIMEOUT_S = 600.0
_SPARE_S = 30.0  # for a service to say that an engine was too slow
_CHECK_S = 300.0  # for it to read a new folder; the engines take it in two turns at most


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that waits to be sent, and for whom it is asked: ids, and a span while traces are on."""

    request: GenerateRequest
    future: asyncio.Future[GenerateReply]
    ids: Ids
    span: Any


class _Batch(BaseModel):
    requests: Sequence[GenerateRequest]


class _Replies(BaseModel):
    replies: list[GenerateReply]


def _asked(requests: Sequence[GenerateRequest]) -> dict[str, Any]:
    """What OpenTelemetry's conventions for generative models call a request."""
    sampling = requests[0].sampling if requests else Sampling()
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "triforge",
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.max_tokens": sampling.max_new_tokens,
    }


def _answered(replies: Sequence[GenerateReply]) -> dict[str, Any]:
    outputs = [output for reply in replies for output in reply.outputs]
    versions = {span.version for output in outputs for span in output.versions}
    return {
        "gen_ai.response.model": ", ".join(f"v{version}" for version in sorted(versions)),
        "gen_ai.response.finish_reasons": sorted({output.finish for output in outputs}),
        "gen_ai.usage.input_tokens": sum(len(reply.prompt_ids) for reply in replies),
        "gen_ai.usage.output_tokens": sum(len(output.ids) for output in outputs),
    }


class PolicyClient:
    """A policy service, as a `Generate`. One a process and event loop; close it.

    Args:
        admin_api_key: key for `update_weights`; empty takes `api_key`.
        batch: short requests made in the same turn of the event loop travel together, up to this many; 1 sends each
            by itself. Those made while others are being answered wait up to `linger_s` for more. A tiny model behind
            one service answers three to five times as many requests a second that way.
        batch_tokens: what is short: at most so many new tokens. A batch is answered as a whole, so a long answer
            would hold up the others.
        change_s: longest wait for a change of weights or memory; at least `timeout_s`.
        patience_s: how long to go on trying while the service is away.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        admin_api_key: str = "",
        batch: int = 16,
        batch_tokens: int = 32,
        linger_s: float = 0.005,
        timeout_s: float = TIMEOUT_S,
        change_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = http_client(
            base_url, timeout_s=timeout_s, transport=transport, api_key=api_key
        )
        self._admin = bearer(admin_api_key or api_key)
        self._batch = batch
        self._batch_tokens = batch_tokens
        self._linger_s = linger_s
        self._departure: asyncio.TimerHandle | None = None
        self._patience_s = patience_s
        self._change_s = max(timeout_s, change_s)
        self._waiting: list[_Asked] = []
        self._sending: set[asyncio.Task[list[GenerateReply]]] = set()

    @classmethod
    def from_settings(cls, settings: Settings, role: Role, **options: Any) -> PolicyClient:
        """The client of a role's service, with the deployment's address and keys."""
        return cls(
            settings.model_url(role),
            api_key=settings.own_key or settings.api_key.get_secret_value(),
            admin_api_key=settings.own_key or settings.admin_api_key.get_secret_value(),
            timeout_s=settings.queue_s + settings.request_s + _SPARE_S,
            change_s=2 * settings.handover_timeout_s + _CHECK_S,
            **options,
        )

    @property
    def base_url(self) -> str:
        """Address of the service."""
        return str(self._http.base_url).rstrip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; requests that wait to be sent fail."""
        if self._departure is not None:
            self._departure.cancel()
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            if not asked.future.done():
                error = UnavailableError(f"{self.base_url}: the client was closed")
                asked.future.set_exception(error)
        await self._http.aclose()

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample. See `generate_many`."""
        return (await self.generate_many([request]))[0]

    async def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Sample for many prompts at once; one reply a request, in order.

        They travel together; if they are few and short, together with those of other callers.

        Raises:
            InputError: a request is malformed, cannot be rendered or is too long.
            PolicyError: the service or its engines failed.
            UnavailableError: nothing answers until the patience ends.
        """
        if not tracing.is_on():
            return await self._answer(requests, None)
        asked = {"prompts": len(requests), **_asked(requests)}
        with tracing.span("generate", "client", **asked) as span:
            replies = await self._answer(requests, span)
            span.set_attributes(_answered(replies))
            return replies

    async def _answer(self, requests: Sequence[GenerateRequest], span: Any) -> list[GenerateReply]:
        few = len(requests) < self._batch
        if few and all(r.sampling.max_new_tokens <= self._batch_tokens for r in requests):
            return await asyncio.gather(*(self._join(request, span) for request in requests))
        return await self._ask(requests)

    def _join(self, request: GenerateRequest, span: Any) -> asyncio.Future[GenerateReply]:
        """Have a request answered together with what others ask in this turn of the loop, or a moment later."""
        future: asyncio.Future[GenerateReply] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._depart(self._linger_s if self._sending else 0.0)
        self._waiting.append(_Asked(request, future, known(), span))
        if len(self._waiting) == self._batch:
            self._depart(0.0)
        return future

    def _depart(self, wait_s: float) -> None:
        """Have what waits leave after `wait_s`, and not when it was to leave before."""
        if self._departure is not None:
            self._departure.cancel()
        self._departure = asyncio.get_running_loop().call_later(wait_s, self._flush)

    async def _ask(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        response = await request(
            self._http,
            "POST",
            "/v1/generate",
            body=_Batch.model_construct(requests=requests),
            deadline_s=self._patience_s,
            busy_s=BUSY_S,
            repeatable=True,
        )
        try:
            replies = _Replies.model_validate_json(response.content).replies
        except ValidationError as error:
            said = f"{self.base_url}: not an answer of a policy service: {error}"
            raise PolicyError(said) from error
        if len(replies) != len(requests):
            said = f"{self.base_url}: expected {len(requests)} replies, got {len(replies)}"
            raise PolicyError(said)
        return replies

    async def weights(self) -> WeightsState:
        """The weight version that serves."""
        return WeightsState.model_validate(await get_json(self._http, "/v1/weights"))

    async def update_weights(self, update: WeightsUpdate) -> WeightsState:
        """Serve another version; returns once it is verified to serve.

        Raises:
            ConflictError: a newer version serves, or this version came from another folder.
            WeightsError: the folder is not what it should be; the old weights serve on.
            UnavailableError: no engine can be asked.
        """
        return await self._change("/v1/weights", update)

    async def release_memory(self) -> WeightsState:
        """Have the engines give their memory back. PolicyError: one cannot."""
        return await self._change("/v1/memory/release")

    async def resume_memory(self) -> WeightsState:
        """Have engines that gave their memory back serve again; UnavailableError: none does."""
        return await self._change("/v1/memory/resume")

    async def _change(self, path: str, body: WeightsUpdate | None = None) -> WeightsState:
        response = await request(
            self._http,
            "POST",
            path,
            body=body,
            headers=self._admin,
            timeout_s=self._change_s,
            deadline_s=self._patience_s,
            repeatable=True,
        )
        return WeightsState.model_validate_json(response.content)

    def _flush(self) -> None:
        self._departure = None
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), self._batch):
            self._send(waiting[start : start + self._batch])

    def _send(self, share: Sequence[_Asked]) -> None:
        wanted = [asked for asked in share if not asked.future.done()]  # not those given up
        if not wanted:
            return
        task = asyncio.create_task(self._ask_together(wanted))
        self._sending.add(task)
        task.add_done_callback(functools.partial(self._hand_out, wanted))

        def given_up(_: asyncio.Future[GenerateReply]) -> None:
            if all(asked.future.done() for asked in wanted):
                task.cancel()  # closes the connection, and the service stops sampling

        for asked in wanted:
            asked.future.add_done_callback(given_up)

    async def _ask_together(self, share: Sequence[_Asked]) -> list[GenerateReply]:
        """The task began inside of one of them; it is about what they have in common."""
        requests = [asked.request for asked in share]
        with only(common([asked.ids for asked in share])):
            if not tracing.is_on():
                return await self._ask(requests)
            with tracing.batch("generate batch", [asked.span for asked in share]):
                return await self._ask(requests)

    def _hand_out(self, share: Sequence[_Asked], task: asyncio.Task[list[GenerateReply]]) -> None:
        self._sending.discard(task)
        if self._waiting and not self._sending:
            self._depart(0.0)
        if task.cancelled():
            for asked in share:
                asked.future.cancel()
            return
        error = task.exception()
        if isinstance(error, (InputError, TooLargeError)) and len(share) > 1:
            for asked in share:  # one caller's bad request is not the others' failure
                self._send([asked])
            return
        for position, asked in enumerate(share):
            if asked.future.done():
                continue
            if error is None:
                asked.future.set_result(task.result()[position])
            else:
                asked.future.set_exception(error)


class ModelClients:
    """The policy services of several models: a request goes to the service of its `model`, without one to that of `role`.

    Its methods raise as `PolicyClient.generate_many`, and a ConfigError if nothing serves the model.
    """

    def __init__(self, settings: Settings, role: Role = "policy", **options: Any) -> None:
        self._settings, self._role, self._options = settings, role, options
        self._clients: dict[Role, PolicyClient] = {}

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample."""
        return await self._client(request)(request)

    async def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Sample for many prompts at once; one reply a request, in order."""
        clients = [self._client(request) for request in requests]
        parts = {
            client: [n for n, one in enumerate(clients) if one is client]
            for client in dict.fromkeys(clients)
        }
        answered = await together(
            client.generate_many([requests[n] for n in places]) for client, places in parts.items()
        )
        replies = dict(zip(chain(*parts.values()), chain(*answered), strict=True))
        return [replies[n] for n in range(len(requests))]

    def _client(self, request: GenerateRequest) -> PolicyClient:
        role = request.model or self._role
        if role not in self._clients:
            self._settings.demand_model(role)
            client = PolicyClient.from_settings(self._settings, role, **self._options)
            self._clients[role] = client
        return self._clients[role]
