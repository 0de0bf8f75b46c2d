"""Typed client of a policy service."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import httpx
from pydantic import BaseModel, ValidationError

from triforge.clients.transport import ServiceClient, bearer, request
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

PATIENCE_S = 60.0  # a lost or refused request is sent again for so long; sampling again is harmless
_BUSY_S = (
    3600.0  # a service that sends 429 works: callers wait, and their own deadlines end the wait
)
_TIMEOUT_S = 600.0
_SPARE_S = 30.0  # for a service to report that an engine was too slow
_CHECK_S = 300.0  # for it to read a new folder; the engines take it in two turns at most


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that waits to be sent, with the ids of its caller and, while traces are on, its span."""

    request: GenerateRequest
    future: asyncio.Future[GenerateReply]
    ids: Ids
    span: Any


class _Batch(BaseModel):
    requests: Sequence[GenerateRequest]


class _Replies(BaseModel):
    replies: list[GenerateReply]


def _request_attributes(requests: Sequence[GenerateRequest]) -> dict[str, Any]:
    """Return the span attributes of OpenTelemetry's conventions for generative models."""
    sampling = requests[0].sampling if requests else Sampling()
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "triforge",
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.max_tokens": sampling.max_new_tokens,
    }


def _response_attributes(replies: Sequence[GenerateReply]) -> dict[str, Any]:
    outputs = [output for reply in replies for output in reply.outputs]
    versions = {span.version for output in outputs for span in output.versions}
    return {
        "gen_ai.response.model": ", ".join(f"v{version}" for version in sorted(versions)),
        "gen_ai.response.finish_reasons": sorted({output.finish for output in outputs}),
        "gen_ai.usage.input_tokens": sum(len(reply.prompt_ids) for reply in replies),
        "gen_ai.usage.output_tokens": sum(len(output.ids) for output in outputs),
    }


class PolicyClient(ServiceClient):
    """A policy service, as a `Generate`.

    Args:
        admin_api_key: key for `update_weights`; empty takes `api_key`.
        batch: short requests of one turn of the event loop are sent together, up to this many; 1 sends each by itself. A tiny
            model answers three to five times as many requests a second that way.
        batch_tokens: a request for at most so many new tokens is short. A batch is answered as a whole, so a long one would
            delay the others.
        linger_s: longest wait of a short request for others while a batch is being answered.
        change_s: longest wait for a change of weights or memory; at least `timeout_s`.
        patience_s: seconds of further tries while the service is away.
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
        timeout_s: float = _TIMEOUT_S,
        change_s: float = _TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, timeout_s=timeout_s, api_key=api_key, transport=transport)
        self._admin = bearer(admin_api_key or api_key)
        self._batch = batch
        self._batch_tokens = batch_tokens
        self._linger_s = linger_s
        self._patience_s = patience_s
        self._change_s = max(timeout_s, change_s)
        self._waiting: list[_Waiting] = []
        self._sending: set[asyncio.Task[list[GenerateReply]]] = set()

    @classmethod
    def from_settings(cls, settings: Settings, role: Role, **options: Any) -> PolicyClient:
        """Return the client of a role's service, with the deployment's address and keys."""
        return cls(
            settings.model_url(role),
            api_key=settings.own_key or settings.api_key.get_secret_value(),
            admin_api_key=settings.own_key or settings.admin_api_key.get_secret_value(),
            timeout_s=settings.queue_s + settings.request_s + _SPARE_S,
            change_s=2 * settings.handover_timeout_s + _CHECK_S,
            **options,
        )

    async def close(self) -> None:
        """Close all connections; requests that wait to be sent fail."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.future.done():
                error = UnavailableError(f"{self.base_url}: the client was closed")
                one.future.set_exception(error)
        await super().close()

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample. See `generate_many`."""
        return (await self.generate_many([request]))[0]

    async def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Sample for many prompts; one reply a request, in order.

        The requests are sent together; if they are few and short, together with those of other callers.

        Raises:
            InputError: a request is malformed, cannot be rendered or is too long.
            PolicyError: the service or its engines failed.
            UnavailableError: no response within `patience_s`.
        """
        if not tracing.is_on():
            return await self._answer(requests, None)
        attributes = {"prompts": len(requests), **_request_attributes(requests)}
        with tracing.span("generate", "client", **attributes) as span:
            replies = await self._answer(requests, span)
            span.set_attributes(_response_attributes(replies))
            return replies

    async def _answer(self, requests: Sequence[GenerateRequest], span: Any) -> list[GenerateReply]:
        few = len(requests) < self._batch
        if few and all(r.sampling.max_new_tokens <= self._batch_tokens for r in requests):
            return await asyncio.gather(*(self._join(request, span) for request in requests))
        return await self._generate(requests)

    async def _generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        response = await request(
            self._http,
            "POST",
            "/v1/generate",
            body=_Batch.model_construct(requests=requests),
            deadline_s=self._patience_s,
            busy_s=_BUSY_S,
            repeatable=True,
        )
        try:
            replies = _Replies.model_validate_json(response.content).replies
        except ValidationError as error:
            raise PolicyError(
                f"{self.base_url}: no response of a policy service: {error}"
            ) from error
        if len(replies) != len(requests):
            raise PolicyError(
                f"{self.base_url}: expected {len(requests)} replies, got {len(replies)}"
            )
        return replies

    # ---- weights ----

    async def weights(self) -> WeightsState:
        """Return the active weight version."""
        return await self._get(WeightsState, "/v1/weights")

    async def update_weights(self, update: WeightsUpdate) -> WeightsState:
        """Activate another version; return when it is verified.

        Raises:
            ConflictError: a newer version is active, or this version came from another folder.
            WeightsError: the folder is damaged; the old version stays active.
            UnavailableError: no engine can be reached.
        """
        return await self._change("/v1/weights", update)

    async def release_memory(self) -> WeightsState:
        """Release the engines' memory. PolicyError: an engine cannot."""
        return await self._change("/v1/memory/release")

    async def resume_memory(self) -> WeightsState:
        """Resume engines after `release_memory`; UnavailableError: none serves."""
        return await self._change("/v1/memory/resume")

    async def _change(self, path: str, body: WeightsUpdate | None = None) -> WeightsState:
        return await self._post(
            WeightsState,
            path,
            body,
            headers=self._admin,
            timeout_s=self._change_s,
            deadline_s=self._patience_s,
            repeatable=True,
        )

    # ---- batches of short requests ----

    def _join(self, request: GenerateRequest, span: Any) -> asyncio.Future[GenerateReply]:
        """Send a request together with others of this turn of the loop, or of a moment later."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[GenerateReply] = loop.create_future()
        if not self._waiting:
            loop.call_later(self._linger_s if self._sending else 0.0, self._flush)
        self._waiting.append(_Waiting(request, future, known(), span))
        if len(self._waiting) == self._batch:
            self._flush()
        return future

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        batch = [one for one in waiting if not one.future.done()]  # without cancelled ones
        if batch:
            self._send(batch)

    def _send(self, batch: Sequence[_Waiting]) -> None:
        task = asyncio.create_task(self._generate_batch(batch))
        self._sending.add(task)
        task.add_done_callback(functools.partial(self._hand_out, batch))

        def cancelled(_: asyncio.Future[GenerateReply]) -> None:
            if all(one.future.done() for one in batch):
                task.cancel()  # closes the connection, and the service stops sampling

        for one in batch:
            one.future.add_done_callback(cancelled)

    async def _generate_batch(self, batch: Sequence[_Waiting]) -> list[GenerateReply]:
        """Generate with the ids that all requests share; the task began inside of one of them."""
        requests = [one.request for one in batch]
        with only(common([one.ids for one in batch])):
            if not tracing.is_on():
                return await self._generate(requests)
            with tracing.batch("generate batch", [one.span for one in batch]):
                return await self._generate(requests)

    def _hand_out(self, batch: Sequence[_Waiting], task: asyncio.Task[list[GenerateReply]]) -> None:
        self._sending.discard(task)
        if task.cancelled():
            for one in batch:
                one.future.cancel()
            return
        error = task.exception()
        if isinstance(error, (InputError, TooLargeError)) and len(batch) > 1:
            for one in batch:  # a bad request fails alone
                if not one.future.done():
                    self._send([one])
            return
        for position, one in enumerate(batch):
            if one.future.done():
                continue
            if error is None:
                one.future.set_result(task.result()[position])
            else:
                one.future.set_exception(error)


class ModelClients:
    """The policy services of several models: a request goes to the service of its `model`, without one to that of `role`.

    Its methods raise as `PolicyClient.generate_many`, and a ConfigError if no service has the model.
    """

    def __init__(self, settings: Settings, role: Role = "policy", **options: Any) -> None:
        self._settings, self._role, self._options = settings, role, options
        self._clients: dict[Role, PolicyClient] = {}

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample."""
        return await self._client(request)(request)

    async def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Sample for many prompts; one reply a request, in order."""
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
