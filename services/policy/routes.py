"""The APIs: check, call, return."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from services.policy.chat_stream import Deltas, begin
from services.policy.gateway import Gateway
from services.policy.native_api import (
    PATH,
    GenerateBatch,
    GoneError,
    answer,
    authorise,
    unless_gone,
)
from services.policy.openai import ChatRequest, completion, model_list
from triforge.access.callers import caller
from triforge.types import WeightsRollback, WeightsState, WeightsUpdate

_JSON = "application/json"
_CLIENT_GONE = 499  # nobody reads it


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """The body of a route that reads it raw, for the API's description."""
    schema = model.model_json_schema()
    content = {_JSON: {"schema": _inline(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inline(schema: Any, known: dict[str, Any]) -> Any:
    """A schema with its references replaced by what they name; `$defs` have no place inside an API description."""
    if isinstance(schema, list):
        return [_inline(item, known) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(known[schema["$ref"].rpartition("/")[2]], known)
    return {key: _inline(value, known) for key, value in schema.items()}


def routes(gateway: Gateway, *, role: str, api_key: str = "", admin_api_key: str = "") -> APIRouter:
    """The routes of a policy service.

    Args:
        gateway: what answers.
        role: the model role; the name under which the model is listed.
        api_key: bearer token that callers must send; empty asks for none.
        admin_api_key: bearer token of `POST /v1/weights`; empty takes `api_key`.
    """
    router = APIRouter()

    @router.post(PATH, openapi_extra=_schema(GenerateBatch))
    async def generate(request: Request) -> Response:
        """Sample from prompts given as messages, prefix ids or both; one reply a request, in order."""
        _authorise(request, api_key)
        return Response(await answer(gateway, await request.body()), media_type=_JSON)

    @router.post("/v1/chat/completions")
    async def chat(request: Request, body: ChatRequest) -> Response:
        """Chat in OpenAI's dialect."""
        _authorise(request, api_key)
        held: dict[str, bytes] = {}
        renderer = gateway.fence.renderer
        if body.shows:
            wanted = await asyncio.to_thread(body.request, held, renderer)
        else:
            wanted = body.request(held, renderer)
        try:
            if body.stream:
                version = gateway.fence.version
                deltas = Deltas(body, model=role, renderer=renderer, version=version)
                events = await unless_gone(
                    request.receive, begin(gateway.stream(wanted, held), deltas)
                )
                return StreamingResponse(events, media_type="text/event-stream")
            (reply,) = await unless_gone(request.receive, gateway.generate([wanted], held))
        except GoneError:
            return Response(status_code=_CLIENT_GONE)
        return JSONResponse(completion(body, reply, model=role, renderer=renderer))

    @router.get("/v1/models")
    async def models(request: Request) -> Response:
        """The one model of this service."""
        _authorise(request, api_key)
        state = gateway.fence.state()
        return JSONResponse(model_list(role=role, version=state.version, uri=_shown(state.uri)))

    @router.get("/v1/weights")
    async def weights(request: Request) -> WeightsState:
        """The weight version that serves."""
        _authorise(request, api_key)
        state = gateway.fence.state()
        return state.model_copy(update={"uri": _shown(state.uri)})

    @router.post("/v1/weights")
    async def update_weights(request: Request, body: WeightsUpdate) -> WeightsState:
        """Serve another weight version; returns once it is proven to serve."""
        _authorise(request, admin_api_key or api_key)
        return await gateway.fence.update(body)

    @router.post("/v1/weights/rollback")
    async def roll_back(request: Request, body: WeightsRollback) -> WeightsState:
        """Serve an older version's folder again, under the next number; returns once it is proven to serve."""
        _authorise(request, admin_api_key or api_key)
        return await gateway.fence.rollback(body.version)

    return router


def _shown(uri: str) -> str:
    """Where the weights lie, for who sees all tenants: the path names the run that trained them, which may be another's."""
    return uri if caller().everything else ""


def _authorise(request: Request, key: str) -> None:
    authorise(request.headers.get("authorization", "").encode(), key)
