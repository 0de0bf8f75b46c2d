"""The APIs: check, call, return."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.policy.api.completions import CompletionRequest, TextDeltas, text_completion
from services.policy.api.openai import ChatRequest, Deltas, completion, events
from services.policy.api.openai_fields import demand_model
from services.policy.api.session_routes import SESSION_RULES, card, session_routes, shown
from services.policy.api.sessions import Sessions
from services.policy.gateway import Gateway
from triforge.access.callers import Rule
from triforge.types import GenerateReply, GenerateRequest, Message, WeightsState, WeightsUpdate
from triforge.web.description import answers, files
from triforge.web.problems import input_error
from triforge.web.server import unless_gone

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_SAMPLING: Final = Rule(requires="submit")  # changes nothing that lasts, but occupies a model
_WEIGHTS: Final = Rule(requires="operator")

# What each route asks for. The weights are all tenants': only services and operators change them.
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
    **SESSION_RULES,
}


_SAMPLED: Final = answers(404, 429, 502)  # an image, room, an engine
_STREAMED: Final = _SAMPLED | files(_EVENTS)


class GenerateBatch(BaseModel):
    """Body of `POST /v1/generate`."""

    model_config = ConfigDict(extra="forbid")
    # one error, not one a number
    requests: Annotated[tuple[GenerateRequest, ...], Field(fail_fast=True)]


class ReplyBatch(BaseModel):
    """Answer of `POST /v1/generate`, in the order of the requests."""

    replies: list[GenerateReply]


class WeightsRollback(Message):
    """Serve the weights of an older version again, under a new number (`POST /v1/weights/rollback`)."""

    version: Annotated[int, Field(ge=0, le=10**9)]


def _schema() -> dict[str, Any]:
    """The body of `POST /v1/generate`, which is read as it comes, for the API's description."""
    content = {_JSON: {"schema": GenerateBatch.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def routes(gateway: Gateway, *, role: str, sessions: Sessions | None = None) -> APIRouter:
    """The routes of a policy service."""
    router = APIRouter()
    router.include_router(session_routes(gateway, role, sessions))

    @router.post("/v1/generate", openapi_extra=_schema(), responses=_SAMPLED)
    async def generate(request: Request) -> Response:
        """Sample from prompts given as messages, prefix ids or both; one reply a request, in order."""
        try:
            batch = GenerateBatch.model_validate_json(await request.body())
        except ValidationError as error:
            raise input_error(error) from None
        replies = await unless_gone(request, gateway.generate(batch.requests))
        answer = ReplyBatch.model_construct(replies=replies)
        return Response(answer.model_dump_json(), media_type=_JSON)

    @router.post("/v1/chat/completions", responses=_STREAMED)
    async def chat(request: Request, body: ChatRequest) -> Response:
        """Chat in OpenAI's dialect."""
        return await _chat(gateway, role, request, body)

    @router.post("/v1/completions", responses=_STREAMED)
    async def complete(request: Request, body: CompletionRequest) -> Response:
        """Plain completions in OpenAI's dialect."""
        return await _complete(gateway, role, request, body)

    @router.get("/v1/models")
    async def models() -> Response:
        """The one model of this service."""
        return JSONResponse({"object": "list", "data": [card(gateway, role)]})

    @router.get("/v1/models/{model}")
    async def show_model(model: str) -> Response:
        """The one model of this service, by its name."""
        demand_model(model, role)
        return JSONResponse(card(gateway, role))

    _add_weights(router, gateway)
    return router


def _add_weights(router: APIRouter, gateway: Gateway) -> None:
    """What serves, and the memory of what serves."""

    @router.get("/v1/weights")
    async def weights_state() -> WeightsState:
        """The weight version that serves."""
        return shown(gateway)

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
        return await gateway.weights.release_memory()

    @router.post("/v1/memory/resume", responses=answers(502))
    async def resume_memory() -> WeightsState:
        """Have engines that gave their memory back serve again; harmless for others."""
        return await gateway.weights.resume_memory()


async def _chat(gateway: Gateway, role: str, request: Request, body: ChatRequest) -> Response:
    demand_model(body.model or role, role)
    held: dict[str, bytes] = {}
    extras = body.extras(body.top_logprobs)
    renderer = gateway.weights.renderer
    wanted = await asyncio.to_thread(body.request, held, renderer)  # images take a while
    if body.stream:
        version = gateway.weights.version
        deltas = Deltas(body, model=role, renderer=renderer, version=version)
        pieces = await unless_gone(request, events(gateway.stream(wanted, held, extras), deltas))
        return StreamingResponse(pieces, media_type=_EVENTS)
    ((reply, samples),) = await unless_gone(request, gateway.answer([wanted], held, extras))
    tops = [sample.tops for sample in samples]
    return JSONResponse(completion(body, reply, tops, model=role, renderer=renderer))


async def _complete(
    gateway: Gateway, role: str, request: Request, body: CompletionRequest
) -> Response:
    demand_model(body.model or role, role)
    extras = body.extras(body.logprobs)
    renderer = gateway.weights.renderer
    wanted = await asyncio.to_thread(body.requests, renderer)
    if body.stream:
        version = gateway.weights.version
        deltas = TextDeltas(body, model=role, renderer=renderer, version=version)
        stream = gateway.stream(wanted[0], extras=extras)
        pieces = await unless_gone(request, events(stream, deltas))
        return StreamingResponse(pieces, media_type=_EVENTS)
    answers = await unless_gone(request, gateway.answer(wanted, extras=extras))
    found = [(reply, [sample.tops for sample in samples]) for reply, samples in answers]
    return JSONResponse(text_completion(body, found, model=role, renderer=renderer))
