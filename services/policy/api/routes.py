"""The REST API of a policy service: our own route, OpenAI's dialect, weights, and the three dialects of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from services.policy.api.anthropic import MessagesDialect, MessagesRequest
from services.policy.api.chat import ChatDialect, ChatRequest
from services.policy.api.completions import CompletionDialect, CompletionRequest
from services.policy.api.openai import OpenAIRequest, demand_model, model_card
from services.policy.api.responses import ResponsesDialect, ResponsesRequest
from services.policy.api.sessions import Sessions
from services.policy.api.streams import Dialect, Pieces, events
from services.policy.gateway import Answer, Gateway
from triforge.access.callers import Rule, caller
from triforge.types import GenerateReply, GenerateRequest, Message, WeightsState, WeightsUpdate
from triforge.web.bodies import body_of, described, off_loop
from triforge.web.description import answers, files
from triforge.web.server import EventStream, unless_gone

_JSON: Final = "application/json"
_BATCH: Final = 4096  # requests
_EVENTS: Final = "text/event-stream"
_SAMPLING: Final = Rule(requires="submit")  # changes nothing that lasts, but occupies a model
_WEIGHTS: Final = Rule(requires="operator")
_SESSION: Final = Rule(requires="session")

# The access that each route needs. The weights are all tenants': only services and operators change them.
RULES: Final[Mapping[str, Rule]] = {
    "POST /v1/generate": _SAMPLING,
    "POST /v1/chat/completions": _SAMPLING,
    "POST /v1/completions": _SAMPLING,
    "GET /v1/models": Rule(requires="read"),
    "GET /v1/models/{model}": Rule(requires="read"),
    "GET /v1/weights": Rule(requires="read"),
    "POST /v1/weights": _WEIGHTS,
    "POST /v1/weights/rollback": _WEIGHTS,
    "POST /v1/memory/release": _WEIGHTS,
    "POST /v1/memory/resume": _WEIGHTS,
    "POST /sessions/{session_id}/v1/chat/completions": _SESSION,
    "POST /sessions/{session_id}/v1/responses": _SESSION,
    "POST /sessions/{session_id}/v1/messages": _SESSION,
    "GET /sessions/{session_id}/v1/models": _SESSION,
}

_SAMPLED: Final = answers(404, 429, 502)  # an image, a full queue, an engine
_STREAMED: Final = _SAMPLED | files(_EVENTS)
_IN_SESSION: Final = answers(401, 404, 409, 429, 502) | files(_EVENTS)
IdempotencyKey = Annotated[str, Header(alias="idempotency-key", max_length=200)]


class GenerateBatch(BaseModel):
    """Body of `POST /v1/generate`."""

    model_config = ConfigDict(extra="forbid")
    # one error, not one a number
    requests: Annotated[tuple[GenerateRequest, ...], Field(fail_fast=True, max_length=_BATCH)]


class ReplyBatch(BaseModel):
    """Answer of `POST /v1/generate`, in the order of the requests."""

    replies: list[GenerateReply]


_Batch = Annotated[GenerateBatch, Depends(body_of(GenerateBatch))]
_Chat = Annotated[ChatRequest, Depends(body_of(ChatRequest))]
_Completion = Annotated[CompletionRequest, Depends(body_of(CompletionRequest))]
_Responses = Annotated[ResponsesRequest, Depends(body_of(ResponsesRequest))]
_Messages = Annotated[MessagesRequest, Depends(body_of(MessagesRequest))]


class WeightsRollback(Message):
    """Body of `POST /v1/weights/rollback`: the older version whose weights are served again, under a new number."""

    version: Annotated[int, Field(ge=0, le=10**9)]


def routes(gateway: Gateway, *, role: str, sessions: Sessions | None = None) -> APIRouter:
    """Return the routes of a policy service."""
    router = APIRouter()
    router.include_router(_sessions(gateway, role, sessions))

    @router.post("/v1/generate", openapi_extra=described(GenerateBatch), responses=_SAMPLED)
    async def generate(request: Request, batch: _Batch) -> Response:
        """Sample from prompts given as messages, prefix ids or both; one reply a request, in order."""
        replies = await unless_gone(request, gateway.generate(batch.requests))
        answer = ReplyBatch.model_construct(replies=replies)
        size = sum(len(reply.prompt_ids) for reply in replies)
        return Response(await off_loop(size, answer.model_dump_json), media_type=_JSON)

    @router.post("/v1/chat/completions", openapi_extra=described(ChatRequest), responses=_STREAMED)
    async def chat(request: Request, body: _Chat) -> Response:
        """Chat in OpenAI's dialect."""
        demand_model(body.model or role, role)
        pictures: dict[str, bytes] = {}
        dialect = _dialect(ChatDialect, body, gateway, role)
        renderer = gateway.weights.renderer
        prompt = await asyncio.to_thread(body.request, renderer, pictures)  # images take a while
        return await _sample(gateway, request, dialect, [prompt], pictures)

    @router.post("/v1/completions", openapi_extra=described(CompletionRequest), responses=_STREAMED)
    async def complete(request: Request, body: _Completion) -> Response:
        """Plain completions in OpenAI's dialect."""
        demand_model(body.model or role, role)
        dialect = _dialect(CompletionDialect, body, gateway, role)
        prompts = await asyncio.to_thread(body.requests, gateway.weights.renderer)
        return await _sample(gateway, request, dialect, prompts)

    @router.get("/v1/models")
    async def models() -> Response:
        """List the one model of this service."""
        return JSONResponse({"object": "list", "data": [_card(gateway, role)]})

    @router.get("/v1/models/{model}")
    async def show_model(model: str) -> Response:
        """Show the one model of this service, by its name."""
        demand_model(model, role)
        return JSONResponse(_card(gateway, role))

    _add_weights(router, gateway)
    return router


def _dialect(
    kind: Callable[..., Dialect[Any]], body: OpenAIRequest, gateway: Gateway, role: str, name: str = ""
) -> Dialect[Any]:  # fmt: skip
    weights = gateway.weights
    return kind(body, model=role, renderer=weights.renderer, version=weights.version, name=name)


async def _sample(
    gateway: Gateway,
    request: Request,
    dialect: Dialect[Any],
    prompts: Sequence[GenerateRequest],
    pictures: Mapping[str, bytes] = {},
) -> Response:
    extras = dialect.body.extras()
    return await _respond(
        request,
        dialect,
        lambda: gateway.stream(prompts[0], pictures, extras),
        lambda: gateway.answer(prompts, pictures, extras),
    )


async def _respond(
    request: Request,
    dialect: Dialect[Any],
    stream: Callable[[], Pieces],
    whole: Callable[[], Awaitable[Sequence[Answer]]],
) -> Response:
    if dialect.body.stream:
        pieces = stream()
        lines = await unless_gone(request, events(pieces, dialect))
        return EventStream(lines, pieces)
    return JSONResponse(dialect.whole(await unless_gone(request, whole())))


def _card(gateway: Gateway, role: str) -> dict[str, Any]:
    state = _state(gateway)
    return model_card(role=role, version=state.version, uri=state.uri)


def _state(gateway: Gateway) -> WeightsState:
    """Return the active version; without its folder, whose path names a run, for a caller of one tenant."""
    state = gateway.weights.state()
    return state if caller().everything else state.model_copy(update={"uri": "", "lost": ""})


def _add_weights(router: APIRouter, gateway: Gateway) -> None:
    @router.get("/v1/weights")
    async def weights_state() -> WeightsState:
        """Show the weight version that serves."""
        return _state(gateway)

    @router.post("/v1/weights", responses=answers(409, 502))
    async def update_weights(body: WeightsUpdate) -> WeightsState:
        """Serve another weight version; returns once it is verified to serve."""
        return await gateway.weights.update(body)

    @router.post("/v1/weights/rollback", responses=answers(404, 409, 502))
    async def roll_back(body: WeightsRollback) -> WeightsState:
        """Serve an older version's folder again, under the next number; returns once it is verified to serve."""
        return await gateway.weights.rollback(body.version)

    @router.post("/v1/memory/release", responses=answers(502))
    async def release_memory() -> WeightsState:
        """Have the engines give their memory back; they serve again after `/v1/memory/resume`, or with the next weight version."""
        await gateway.weights.memory.release()
        return _state(gateway)

    @router.post("/v1/memory/resume", responses=answers(502))
    async def resume_memory() -> WeightsState:
        """Have engines that gave their memory back serve again; harmless for others."""
        await gateway.weights.memory.resume()
        return _state(gateway)


def _in_path(session_id: str) -> None:
    """Describe the path; the middleware has checked the session's key."""


def _sessions(gateway: Gateway, role: str, sessions: Sessions | None) -> APIRouter:
    """Return the routes of sessions. Any name of a model is the policy's."""
    router = APIRouter(
        prefix="/sessions/{session_id}/v1", tags=["sessions"], dependencies=[Depends(_in_path)]
    )

    async def respond(
        request: Request, body: ChatRequest, key: str, kind: Callable[..., Dialect[Any]]
    ) -> Response:
        assert sessions is not None  # or the middleware has refused
        call = await sessions.begin(request.state.session, body, key)
        dialect = _dialect(kind, body, gateway, role, call.name)
        return await _respond(
            request, dialect, lambda: sessions.stream(call), lambda: sessions.answer(call)
        )

    @router.post("/chat/completions", openapi_extra=described(ChatRequest), responses=_IN_SESSION)
    async def session_chat(request: Request, body: _Chat, key: IdempotencyKey = "") -> Response:
        """Chat in OpenAI's dialect, in a session."""
        return await respond(request, body, key, ChatDialect)

    @router.post("/responses", openapi_extra=described(ResponsesRequest), responses=_IN_SESSION)
    async def session_responses(
        request: Request, body: _Responses, key: IdempotencyKey = ""
    ) -> Response:
        """Responses in OpenAI's dialect, in a session; a request brings its whole conversation."""
        return await respond(request, await asyncio.to_thread(body.chat), key, ResponsesDialect)

    @router.post("/messages", openapi_extra=described(MessagesRequest), responses=_IN_SESSION)
    async def session_messages(
        request: Request, body: _Messages, key: IdempotencyKey = ""
    ) -> Response:
        """Messages in Anthropic's dialect, in a session."""
        return await respond(request, await asyncio.to_thread(body.chat), key, MessagesDialect)

    @router.get("/models", responses=answers(401, 404, 409))
    async def session_models() -> Response:
        """List the one model of a session."""
        return JSONResponse({"object": "list", "data": [_card(gateway, role)]})

    return router
