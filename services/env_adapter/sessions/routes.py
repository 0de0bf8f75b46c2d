"""The routes of sessions; they translate and do nothing else. A session's own key opens what names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Response

from services.env_adapter.pools.requests import SessionEnd, SessionRequest
from services.env_adapter.sessions.trajectories import Sessions
from triforge.access.callers import Rule
from triforge.access.keys import key_of
from triforge.types import MadeSession, SessionReward, SessionState, SessionTrace
from triforge.web.description import answers

_READ: Final = Rule(requires="read", or_session=True)
_SUBMIT: Final = Rule(requires="submit", or_session=True)

RULES: Final[Mapping[str, Rule]] = {
    "POST /v1/sessions": Rule(requires="submit"),
    "GET /v1/sessions/{session_id}": _READ,
    "GET /v1/sessions/{session_id}/trace": _READ,
    "POST /v1/sessions/{session_id}/reward": _SUBMIT,
    "POST /v1/sessions/{session_id}/end": _SUBMIT,
}

_OWN: Final = answers(401, 404)


def _key(authorization: Annotated[str, Header(include_in_schema=False)] = "") -> str:
    return key_of(authorization)


Key = Annotated[str, Depends(_key)]


def session_routes(sessions: Sessions) -> APIRouter:
    """All routes of sessions."""
    router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

    @router.post("", status_code=201, responses=answers(404, 409, 429))
    async def begin_session(
        wanted: SessionRequest,
        response: Response,
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> MadeSession:
        """Begin a session: where its agent asks the model, with which key, and the task if it belongs to a run."""
        made = await sessions.create(wanted, idempotency_key or None)
        response.headers["Location"] = f"/v1/sessions/{made.session.id}"
        return made

    @router.get("/{session_id}", responses=_OWN)
    async def show_session(session_id: str, key: Key) -> SessionState:
        """How a session stands."""
        return await sessions.get(session_id, key)

    @router.get("/{session_id}/trace", responses=_OWN)
    async def trace_session(session_id: str, key: Key) -> SessionTrace:
        """Every sample of a session: token ids, log-probabilities, the weight version of each token, and what it continues."""
        return await sessions.trace(session_id, key)

    @router.post("/{session_id}/reward", responses=_OWN | answers(409))
    async def reward_session(session_id: str, reward: SessionReward, key: Key) -> SessionState:
        """Say how a session went. The same reward again changes nothing, another one is refused."""
        return await sessions.reward(session_id, key, reward)

    @router.post("/{session_id}/end", responses=_OWN | answers(409))
    async def end_session(session_id: str, key: Key, how: SessionEnd | None = None) -> SessionState:
        """Let the agent ask the model no more; its reward may still come, unless there was an error."""
        return await sessions.end(session_id, key, how or SessionEnd())

    return router
