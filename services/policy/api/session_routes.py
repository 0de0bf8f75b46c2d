"""The routes of sessions: three dialects of one question. The middleware before them has asked for the session's key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from services.policy.api.anthropic import MessageDeltas, MessagesRequest, message
from services.policy.api.openai import ChatRequest, Chunks, Deltas, completion, events, model_card
from services.policy.api.responses import ResponseDeltas, ResponsesRequest, response
from services.policy.api.sessions import Sessions
from services.policy.gateway import Gateway
from triforge.access.callers import Rule, caller
from triforge.types import WeightsState
from triforge.web.description import answers, files
from triforge.web.server import unless_gone

_EVENTS: Final = "text/event-stream"
_SESSION: Final = Rule(requires="session")
SESSION_RULES: Final[Mapping[str, Rule]] = {
    "POST /sessions/{session_id}/v1/chat/completions": _SESSION,
    "POST /sessions/{session_id}/v1/responses": _SESSION,
    "POST /sessions/{session_id}/v1/messages": _SESSION,
    "GET /sessions/{session_id}/v1/models": _SESSION,
}
_ANSWERS: Final = answers(401, 404, 409, 429, 502) | files(_EVENTS)
Asked = Annotated[str, Header(alias="idempotency-key", max_length=200)]


def session_routes(gateway: Gateway, role: str, sessions: Sessions | None) -> APIRouter:
    """The routes of sessions; each continues what it continues. Any name of a model is the policy's."""
    router = APIRouter(prefix="/sessions/{session_id}/v1", tags=["sessions"])

    async def respond(
        request: Request, body: ChatRequest, asked: str, chunks: Callable[..., Chunks], whole: Callable[..., dict[str, Any]]
    ) -> Response:  # fmt: skip
        assert sessions is not None  # the middleware has asked for the session's key
        call = await sessions.begin(request.state.session, body, asked)
        if body.stream:
            events_of = chunks(body, model=role, name=call.name)
            pieces = await unless_gone(request, events(sessions.stream(call), events_of))
            return StreamingResponse(pieces, media_type=_EVENTS)
        reply, tops = await unless_gone(request, sessions.answer(call))
        return JSONResponse(whole(body, reply, tops, model=role, name=call.name))

    @router.post("/chat/completions", responses=_ANSWERS)
    async def session_chat(
        session_id: str,  # noqa: ARG001
        request: Request,
        body: ChatRequest,
        asked: Asked = "",
    ) -> Response:
        """Chat in OpenAI's dialect, in a session."""
        renderer, version = gateway.weights.renderer, gateway.weights.version
        chunks = partial(Deltas, renderer=renderer, version=version)
        return await respond(request, body, asked, chunks, partial(completion, renderer=renderer))

    @router.post("/responses", responses=_ANSWERS)
    async def session_responses(
        session_id: str,  # noqa: ARG001
        request: Request,
        body: ResponsesRequest,
        asked: Asked = "",
    ) -> Response:
        """Responses in OpenAI's dialect, in a session; a request brings its whole conversation."""
        return await respond(request, body.chat(), asked, ResponseDeltas, response)

    @router.post("/messages", responses=_ANSWERS)
    async def session_messages(
        session_id: str,  # noqa: ARG001
        request: Request,
        body: MessagesRequest,
        asked: Asked = "",
    ) -> Response:
        """Messages in Anthropic's dialect, in a session."""
        return await respond(request, body.chat(), asked, MessageDeltas, message)

    @router.get("/models", responses=answers(401, 404, 409))
    async def session_models(session_id: str) -> Response:  # noqa: ARG001
        """The one model of a session."""
        return JSONResponse({"object": "list", "data": [card(gateway, role)]})

    return router


def card(gateway: Gateway, role: str) -> dict[str, Any]:
    """The one model of a service, as OpenAI's clients list it."""
    state = shown(gateway)
    return model_card(role=role, version=state.version, uri=state.uri)


def shown(gateway: Gateway) -> WeightsState:
    """What serves; without where the weights lie for who sees one tenant only: the path names the run that trained them."""
    state = gateway.weights.state()
    return state if caller().everything else state.model_copy(update={"uri": ""})
