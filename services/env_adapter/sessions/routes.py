"""The REST API of sessions, and the rights that each route needs. A session's own key opens the routes that name it.

A reward is answered once it is in SQL with its turns. The turns of open sessions are in the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Response

from services.env_adapter.sessions.expiry import current
from services.env_adapter.sessions.store import (
    SessionEnd,
    SessionRequest,
    SessionStore,
    require_reward_allowed,
)
from services.env_adapter.sessions.trajectories import step_rewards
from triforge.access.callers import Rule
from triforge.access.keys import key_of
from triforge.broker.sessions import SessionLog
from triforge.errors import ConflictError, InputError, NotFoundError
from triforge.types import MadeSession, SessionReward, SessionState, SessionTrace, Task
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
_CHANGE: Final = answers(401, 404, 409)


def _key(authorization: Annotated[str, Header(include_in_schema=False)] = "") -> str:
    return key_of(authorization)


Key = Annotated[str, Depends(_key)]


class Sessions:
    """The routes of sessions; agents reach the policy service at `policy_url`."""

    def __init__(
        self, store: SessionStore, log: SessionLog, task: Callable[[str], Task], policy_url: str
    ) -> None:
        self._store, self._log, self._task, self._policy_url = store, log, task, policy_url

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1/sessions", tags=["sessions"])
        begun = answers(404, 409, 429)
        router.post("", status_code=201, responses=begun)(self.begin_session)
        router.get("/{session_id}", responses=_OWN)(self.show_session)
        router.get("/{session_id}/trace", responses=_OWN)(self.trace_session)
        router.post("/{session_id}/reward", responses=_CHANGE)(self.reward_session)
        router.post("/{session_id}/end", responses=_CHANGE)(self.end_session)
        return router

    async def begin_session(
        self,
        request: SessionRequest,
        response: Response,
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> MadeSession:
        """Begin a session: return the address and key for its agent, and the task if it belongs to a run."""
        begun = await asyncio.to_thread(self._store.create, request, idempotency_key or None)
        await self._log.open(begun.opened, begun.left_s)
        state, group = begun.state, begun.group
        response.headers["Location"] = f"/v1/sessions/{state.id}"
        return MadeSession(
            session=state,
            base_url=f"{self._policy_url}/sessions/{state.id}/v1",
            key=begun.key,
            task=await asyncio.to_thread(self._task, state.task_id) if state.task_id else None,
            options=group.env_adapter.options if group else {},
        )

    async def show_session(self, session_id: str, key: Key) -> SessionState:
        """Return the state of a session."""
        return await current(self._store, self._log, session_id, key)

    async def trace_session(self, session_id: str, key: Key) -> SessionTrace:
        """Return all samples of a session: token ids, log-probabilities, weight versions, and the turn that each continues."""
        state = await current(self._store, self._log, session_id, key)
        kept = await asyncio.to_thread(self._store.turns, session_id)
        if kept is None and state.status == "finished":
            raise NotFoundError(
                f"session {session_id}: its turns were deleted after a while; the record of its run has them"
            )
        turns = await self._log.all(session_id) if kept is None or state.status == "open" else kept
        return SessionTrace(session=state, turns=turns)

    async def reward_session(
        self, session_id: str, reward: SessionReward, key: Key
    ) -> SessionState:
        """Reward a session. The same reward again changes nothing, another one is refused."""
        if reward.score is None and reward.success is None and not reward.steps:
            raise InputError("reward: given none, expected `score`, `success` or `steps`")
        state = await current(self._store, self._log, session_id, key)
        require_reward_allowed(state, reward)
        if state.reward is not None and (state.status == "finished" or not reward.end):
            return state
        turns = await self._log.all(session_id)
        if turns:
            step_rewards(turns, reward.steps)  # refuses unknown answers
            if reward.end:
                await self._log.close(session_id, "it has its reward")
                turns = await self._log.all(session_id)
        # the same request may have been stored in the meantime
        elif (await current(self._store, self._log, session_id, key)).reward is None:
            raise ConflictError(
                f"session {session_id}: its agent has sampled nothing, so there is nothing to reward"
            )
        state = await asyncio.to_thread(self._store.add_reward, session_id, reward, turns)
        if state.status == "finished":
            await self._log.forget(session_id)
        return state

    async def end_session(
        self, session_id: str, key: Key, end: SessionEnd | None = None
    ) -> SessionState:
        """End the sampling of a session; its reward may still come, unless there was an error."""
        error = end.error if end else ""
        await current(self._store, self._log, session_id, key)
        await self._log.close(session_id, error or "it was ended")
        turns = await self._log.all(session_id)
        return await asyncio.to_thread(self._store.end, session_id, error, turns)
