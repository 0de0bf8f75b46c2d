"""The APIs: check, call, return."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

from services.policy.gateway import Gateway
from services.policy.openai import ChatRequest, Deltas, completion, events, model_list
from triforge.access.callers import Rule, caller
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    Message,
    WeightsState,
    WeightsUpdate,
)
from triforge.web.problems import input_error
from triforge.web.server import unless_gone

_JSON: Final = "application/json"
_SAMPLING: Final = Rule(wants="submit")  # changes nothing that lasts, but occupies a model
_WEIGHTS: Final = Rule(wants="operator", changes=True)

# What each route asks for. The weights are all tenants': only services and operators change them.
RULES: Final[Mapping[str, Rule]] = {
    "POST /v1/generate": _SAMPLING,
    "POST /v1/chat/completions": _SAMPLING,
    "GET /v1/models": Rule(wants="read"),
    "GET /v1/weights": Rule(wants="read"),
    "POST /v1/weights": _WEIGHTS,
    "POST /v1/weights/rollback": _WEIGHTS,
}


class GenerateBatch(BaseModel):
    """Body of `POST /v1/generate`."""

    model_config = ConfigDict(extra="forbid")
    requests: tuple[GenerateRequest, ...]


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


def routes(gateway: Gateway, *, role: str, api_key: str = "", admin_api_key: str = "") -> APIRouter:
    """The routes of a policy service; an empty key asks for none, `admin_api_key` takes `api_key` then."""
    router = APIRouter()

    @router.post("/v1/generate", openapi_extra=_schema())
    async def generate(request: Request) -> Response:
        """Sample from prompts given as messages, prefix ids or both; one reply a request, in order."""
        _authorise(request, api_key)
        try:
            batch = GenerateBatch.model_validate_json(await request.body())
        except ValidationError as error:
            raise input_error(error) from None
        replies = await unless_gone(request, gateway.generate(batch.requests))
        answer = ReplyBatch.model_construct(replies=replies)
        return Response(answer.model_dump_json(), media_type=_JSON)

    @router.post("/v1/chat/completions")
    async def chat(request: Request, body: ChatRequest) -> Response:
        """Chat in OpenAI's dialect."""
        _authorise(request, api_key)
        return await _chat(gateway, role, request, body)

    @router.get("/v1/models")
    async def models(request: Request) -> Response:
        """The one model of this service."""
        _authorise(request, api_key)
        state = _shown(gateway.weights.state())
        return JSONResponse(model_list(role=role, version=state.version, uri=state.uri))

    @router.get("/v1/weights")
    async def weights_state(request: Request) -> WeightsState:
        """The weight version that serves."""
        _authorise(request, api_key)
        return _shown(gateway.weights.state())

    @router.post("/v1/weights")
    async def update_weights(request: Request, body: WeightsUpdate) -> WeightsState:
        """Serve another weight version; returns once it is verified to serve."""
        _authorise(request, admin_api_key or api_key)
        return await gateway.weights.update(body)

    @router.post("/v1/weights/rollback")
    async def roll_back(request: Request, body: WeightsRollback) -> WeightsState:
        """Serve an older version's folder again, under the next number; returns once it is verified to serve."""
        _authorise(request, admin_api_key or api_key)
        return await gateway.weights.rollback(body.version)

    return router


async def _chat(gateway: Gateway, role: str, request: Request, body: ChatRequest) -> Response:
    held: dict[str, bytes] = {}
    renderer = gateway.weights.renderer
    wanted = await asyncio.to_thread(body.request, held, renderer)  # images take a while
    if body.stream:
        version = gateway.weights.version
        deltas = Deltas(body, model=role, renderer=renderer, version=version)
        pieces = await unless_gone(request, events(gateway.stream(wanted, held), deltas))
        return StreamingResponse(pieces, media_type="text/event-stream")
    (reply,) = await unless_gone(request, gateway.generate([wanted], held))
    return JSONResponse(completion(body, reply, model=role, renderer=renderer))


def _shown(state: WeightsState) -> WeightsState:
    """Without where the weights lie, for who sees one tenant only: the path names the run that trained them."""
    return state if caller().everything else state.model_copy(update={"uri": ""})


def _authorise(request: Request, key: str) -> None:
    """Check the Authorization header; an empty key opens to all."""
    given = request.headers.get("authorization", "").encode()
    if key and not hmac.compare_digest(given, b"Bearer " + key.encode()):
        raise HTTPException(
            401,
            "a bearer token is needed: send the service's TRIFORGE_API_KEY as `Authorization: Bearer ...`",
            {"WWW-Authenticate": "Bearer"},
        )
