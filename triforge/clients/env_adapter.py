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
    Task,
    TaskDetail,
)

_DEADLINE_S = 60.0  # of requests that are repeated while env_adapter or its database restarts


class EnvAdapterClient(ServiceClient):
    """Pools, tasks, plans and sessions of a deployment. The `note` of a change, `by` and `reason`, is optional and stored."""

    def __init__(
        self, base_url: str, *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        super().__init__(base_url, timeout_s=600.0, api_key=api_key, transport=transport)

    async def create_pool(
        self, pool: Mapping[str, Any] | BaseModel, *, key: str | None = None
    ) -> PoolState:
        """Create a pool; the error names every bad row. With an idempotency key the request may be repeated."""
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
        """Create a pool from JSONL. Errors: see `create_pool`."""
        query = {"name": name, "environment": environment, "approval": approval}
        headers = {"content-type": "application/x-ndjson"}
        async with streamed(
            self._http, "POST", "/v1/pools", body=lines, params=query, headers=headers
        ) as response:
            await response.aread()
            return PoolState.model_validate(parse_json(response))

    async def pools(self, **filters: str | None) -> list[PoolState]:
        """Return pools by name."""
        return [pool async for pool in self._list(PoolState, "/v1/pools", filters)]

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        """Return a pool by id or name; a service names the tenant for which it asks."""
        headers = {"Triforge-Tenant": tenant} if tenant else {}
        return await self._get(PoolState, f"/v1/pools/{segment(pool)}", headers=headers)

    async def check_pool(self, pool: str, options: Params) -> PoolState:
        """Return the pool if its tasks can be played with these options; else InputError or ConfigError."""
        path = f"/v1/pools/{segment(pool)}/check"
        return await self._get(PoolState, path, params={"options": json.dumps(options)})

    async def change_pool(
        self, pool: str, verb: Literal["pause", "resume", "retire"], **note: str
    ) -> PoolState:
        """Pause, resume or retire a pool."""
        return await self._post(PoolState, f"/v1/pools/{segment(pool)}/{verb}", note)

    async def set_approval(self, pool: str, approval: Approval, **note: str) -> PoolState:
        """Set whether rewrites of a pool wait for a person."""
        change = {"approval": approval, **note}
        return await self._ask(PoolState, "PATCH", f"/v1/pools/{segment(pool)}", body=change)

    def tasks(self, pool: str, **filters: str | None) -> AsyncIterator[Task]:
        """Yield a pool's task versions by split, position, version."""
        return self._list(Task, f"/v1/pools/{segment(pool)}/tasks", filters)

    async def proposals(self, pool: str, **filters: str | None) -> list[Proposal]:
        """Return a pool's rewrites, oldest first."""
        path = f"/v1/pools/{segment(pool)}/proposals"
        return [proposal async for proposal in self._list(Proposal, path, filters)]

    def export(
        self, pool: str, content: Literal["tasks", "versions", "proposals"] = "tasks"
    ) -> AsyncIterator[bytes]:
        """Yield a pool as JSONL, in parts of any size."""
        return self._parts(f"/v1/pools/{segment(pool)}/export", content=content)

    async def task(self, task_id: str) -> TaskDetail:
        """Return a task version with its measurements."""
        return await self._get(TaskDetail, f"/v1/tasks/{segment(task_id)}")

    async def lineage(self, task_id: str) -> Lineage:
        """Return all versions of the task's slot."""
        return await self._get(Lineage, f"/v1/tasks/{segment(task_id)}/lineage")

    async def change_task(
        self, task_id: str, verb: Literal["pause", "resume", "retire", "pin", "unpin"], **note: str
    ) -> TaskDetail:
        """Change the slot of a version; return its current version."""
        return await self._post(TaskDetail, f"/v1/tasks/{segment(task_id)}/{verb}", note)

    async def roll_back(self, task_id: str, to: str, **note: str) -> TaskDetail:
        """Undo rewrites down to the ancestor `to`; return the new version."""
        path = f"/v1/tasks/{segment(task_id)}/rollback"
        return await self._post(TaskDetail, path, {"to": to, **note})

    async def proposal(self, proposal_id: str) -> ProposalDetail:
        """Return a rewrite with its measurements and changes."""
        return await self._get(ProposalDetail, f"/v1/proposals/{segment(proposal_id)}")

    async def decide(
        self, proposal_id: str, decision: Literal["approve", "reject"], **note: str
    ) -> ProposalDetail:
        """Approve or reject a rewrite."""
        path = f"/v1/proposals/{segment(proposal_id)}/{decision}"
        return await self._post(ProposalDetail, path, note)

    async def plan(self, pool_id: str, request: PlanRequest) -> list[PlannedGroup]:
        """Return the plan of a step; a repeated request gets the same one.

        Raises:
            UnavailableError: no response, or the pool is paused: the caller waits.
            ConflictError: the pool is retired, or none of its tasks can be played.
        """
        path = f"/v1/pools/{segment(pool_id)}/plans"
        options: dict[str, Any] = {"deadline_s": _DEADLINE_S, "repeatable": True}
        try:
            plan = await self._post(Page[PlannedGroup], path, request, **options)
        except PausedError as error:
            raise UnavailableError(error.detail) from None
        return list(plan.items)

    # ---- sessions of agents ----

    async def begin_session(self, **fields: Any) -> MadeSession:
        """Begin a session; fields as in `POST /v1/sessions`. BusyError while its run has no free place."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return await self._post(MadeSession, "/v1/sessions", fields, headers=headers)

    async def session(self, session_id: str) -> SessionState:
        """Return the state of a session."""
        return await self._get(SessionState, f"/v1/sessions/{segment(session_id)}")

    async def reward_session(self, session_id: str, reward: SessionReward) -> SessionState:
        """Give a session its reward; repeated while env_adapter is away."""
        path = f"/v1/sessions/{segment(session_id)}/reward"
        return await self._post(SessionState, path, reward, deadline_s=_DEADLINE_S, repeatable=True)

    async def end_session(self, session_id: str, *, error: str = "") -> SessionState:
        """End a session; with an error it gets no reward. Repeated while env_adapter is away."""
        path = f"/v1/sessions/{segment(session_id)}/end"
        body = {"error": error[:2000]}
        return await self._post(SessionState, path, body, deadline_s=_DEADLINE_S, repeatable=True)
