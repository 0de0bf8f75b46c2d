"""Typed client of env_adapter's APIs."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any, Literal

import httpx
from pydantic import BaseModel

from triforge.clients.transport import ServiceClient, parse_json, segment, streamed
from triforge.errors import PausedError, UnavailableError
from triforge.types import (
    Approval,
    Lineage,
    MadeSession,
    Page,
    Params,
    PlannedGroup,
    PlanRequest,
    PoolState,
    Proposal,
    ProposalDetail,
    SessionReward,
    SessionState,
    SessionTrace,
    Task,
    TaskDetail,
)

_DEADLINE_S = 60.0  # a plan is asked for again while env_adapter or its database restarts
_JSONL = "application/x-ndjson"


class EnvAdapterClient(ServiceClient):
    """Pools, tasks and plans of a deployment. Who asks for a change, and why, is for the record; both may be left out."""

    def __init__(
        self, base_url: str, *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        super().__init__(base_url, timeout_s=600.0, api_key=api_key, transport=transport)

    async def create_pool(
        self, pool: Mapping[str, Any] | BaseModel, *, key: str | None = None
    ) -> PoolState:
        """Make a pool; the API checks its fields and names every bad row.

        With an idempotency key the same request can be sent again.
        """
        headers = {"Idempotency-Key": key} if key else {}
        return await self._post(PoolState, "/v1/pools", pool, headers=headers)

    async def upload_pool(
        self,
        name: str,
        environment: str,
        lines: bytes | AsyncIterable[bytes],
        *,
        approval: Approval = "automatic",
    ) -> PoolState:
        """Make a pool from JSONL, whole or as it is read. Errors: see `create_pool`."""
        query = {"name": name, "environment": environment, "approval": approval}
        headers = {"content-type": _JSONL}
        async with streamed(
            self._http, "POST", "/v1/pools", body=lines, params=query, headers=headers
        ) as reply:
            await reply.aread()
            return PoolState.model_validate(parse_json(reply))

    async def pools(self, **wanted: str | None) -> list[PoolState]:
        """All pools by name, or those that meet the filters of the API."""
        return [pool async for pool in self._list(PoolState, "/v1/pools", wanted)]

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        """A pool by id or name; a service says for which tenant it asks."""
        headers = {"Triforge-Tenant": tenant} if tenant else {}
        return await self._get(PoolState, f"/v1/pools/{segment(pool)}", headers=headers)

    async def check_pool(self, pool: str, options: Params) -> PoolState:
        """The pool, if its tasks can be played with these options; InputError or ConfigError if not."""
        path = f"/v1/pools/{segment(pool)}/check"
        return await self._get(PoolState, path, params={"options": json.dumps(options)})

    async def change_pool(
        self,
        pool: str,
        verb: Literal["pause", "resume", "retire"],
        *,
        by: str = "",
        reason: str = "",
    ) -> PoolState:
        """Pause, resume or retire a pool."""
        who = {"by": by, "reason": reason}
        return await self._post(PoolState, f"/v1/pools/{segment(pool)}/{verb}", who)

    async def set_approval(
        self, pool: str, approval: Approval, *, by: str = "", reason: str = ""
    ) -> PoolState:
        """Say whether rewrites of a pool wait for a person."""
        change = {"approval": approval, "by": by, "reason": reason}
        return await self._ask(PoolState, "PATCH", f"/v1/pools/{segment(pool)}", body=change)

    def tasks(self, pool: str, **wanted: str | None) -> AsyncIterator[Task]:
        """A pool's task versions in order of split, position, version; those that meet the filters of the API."""
        return self._list(Task, f"/v1/pools/{segment(pool)}/tasks", wanted)

    async def proposals(self, pool: str, **wanted: str | None) -> list[Proposal]:
        """A pool's rewrites, oldest first; those that meet the filters of the API."""
        path = f"/v1/pools/{segment(pool)}/proposals"
        return [proposal async for proposal in self._list(Proposal, path, wanted)]

    def export(self, pool: str) -> AsyncIterator[bytes]:
        """Return the tasks of a pool as JSONL, in parts of any size."""
        return self._parts(f"/v1/pools/{segment(pool)}/export")

    async def task(self, task_id: str) -> TaskDetail:
        """A task version with its measurements."""
        return await self._get(TaskDetail, f"/v1/tasks/{segment(task_id)}")

    async def lineage(self, task_id: str) -> Lineage:
        """All versions of the task's slot."""
        return await self._get(Lineage, f"/v1/tasks/{segment(task_id)}/lineage")

    async def change_task(
        self,
        task_id: str,
        verb: Literal["pause", "resume", "retire", "pin", "unpin"],
        *,
        by: str = "",
        reason: str = "",
    ) -> TaskDetail:
        """Change the slot of a version; its current version comes back."""
        who = {"by": by, "reason": reason}
        return await self._post(TaskDetail, f"/v1/tasks/{segment(task_id)}/{verb}", who)

    async def roll_back(
        self, task_id: str, to: str, *, by: str = "", reason: str = ""
    ) -> TaskDetail:
        """Undo rewrites down to the ancestor `to`; the new version comes back."""
        wanted = {"to": to, "by": by, "reason": reason}
        return await self._post(TaskDetail, f"/v1/tasks/{segment(task_id)}/rollback", wanted)

    async def proposal(self, proposal_id: str) -> ProposalDetail:
        """A rewrite with everything said, measured and done about it."""
        return await self._get(ProposalDetail, f"/v1/proposals/{segment(proposal_id)}")

    async def decide(
        self,
        proposal_id: str,
        decision: Literal["approve", "reject"],
        *,
        by: str = "",
        reason: str = "",
    ) -> ProposalDetail:
        """Approve or reject a rewrite."""
        path = f"/v1/proposals/{segment(proposal_id)}/{decision}"
        return await self._post(ProposalDetail, path, {"by": by, "reason": reason})

    async def plan(self, pool_id: str, wanted: PlanRequest) -> list[PlannedGroup]:
        """What a step plays. Asked again while env_adapter restarts: the answer stays the same.

        Raises:
            UnavailableError: nothing answers, or people have paused the pool: who asks waits.
            ConflictError: the pool is retired, or nothing of it can be played.
        """
        path = f"/v1/pools/{segment(pool_id)}/plans"
        options: dict[str, Any] = {"deadline_s": _DEADLINE_S, "repeatable": True}
        try:
            plan = await self._post(Page[PlannedGroup], path, wanted, **options)
        except PausedError as error:
            raise UnavailableError(error.detail) from None
        return list(plan.items)

    # ---- sessions of agents ----

    async def begin_session(self, **wanted: Any) -> MadeSession:
        """Begin a session; fields as in `POST /v1/sessions`. BusyError while its run has no free place."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return await self._post(MadeSession, "/v1/sessions", wanted, headers=headers)

    async def session(self, session_id: str) -> SessionState:
        """How a session stands."""
        return await self._get(SessionState, f"/v1/sessions/{segment(session_id)}")

    async def trace_session(self, session_id: str) -> SessionTrace:
        """All that was sampled in a session."""
        return await self._get(SessionTrace, f"/v1/sessions/{segment(session_id)}/trace")

    async def reward_session(self, session_id: str, reward: SessionReward) -> SessionState:
        """Say how a session went; sent again while env_adapter is away."""
        path = f"/v1/sessions/{segment(session_id)}/reward"
        return await self._post(SessionState, path, reward, deadline_s=_DEADLINE_S, repeatable=True)

    async def end_session(self, session_id: str, *, error: str = "") -> SessionState:
        """End a session; with an error it gets no reward. Sent again while env_adapter is away."""
        path = f"/v1/sessions/{segment(session_id)}/end"
        body = {"error": error[:2000]}
        return await self._post(SessionState, path, body, deadline_s=_DEADLINE_S, repeatable=True)
