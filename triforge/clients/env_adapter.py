"""Typed client of env_adapter's APIs."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Literal, TypeVar

import httpx

from triforge.clients.transport import (
    get_json,
    http_client,
    parse_json,
    post_json,
    request,
    segment,
    streamed,
)
from triforge.errors import PausedError, UnavailableError
from triforge.types import (
    Approval,
    AuditEntry,
    AuditPage,
    Change,
    Lineage,
    Plan,
    PlannedGroup,
    PlanRequest,
    PoolChange,
    PoolPage,
    PoolRequest,
    PoolState,
    Proposal,
    ProposalDetail,
    ProposalPage,
    Rollback,
    Task,
    TaskDetail,
    TaskPage,
)

_DEADLINE_S = 60.0  # a plan is asked for again while env_adapter or its database restarts
_PAGE = 1000
_JSONL = "application/x-ndjson"

_Page = TypeVar("_Page", PoolPage, TaskPage, ProposalPage, AuditPage)


class EnvAdapterClient:
    """Pools, tasks and plans of a deployment."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = http_client(base_url, timeout_s=600.0, transport=transport, api_key=api_key)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def create_pool(
        self, pool: PoolRequest | dict[str, Any], *, key: str | None = None
    ) -> PoolState:
        """Make a pool. With an idempotency key the same request can be sent again.

        A dict is sent as it is: the API checks it and names every bad row.
        """
        headers = {"Idempotency-Key": key} if key else {}
        reply = await request(self._http, "POST", "/v1/pools", body=pool, headers=headers)
        return PoolState.model_validate(parse_json(reply))

    async def upload_pool(
        self,
        name: str,
        environment: str,
        lines: bytes | AsyncIterable[bytes],
        *,
        approval: Approval = "automatic",
        key: str | None = None,
    ) -> PoolState:
        """Make a pool from JSONL, whole or as it is read. Errors: see `create_pool`."""
        query = {"name": name, "environment": environment, "approval": approval}
        headers = {"content-type": _JSONL} | ({"Idempotency-Key": key} if key else {})
        async with streamed(
            self._http, "POST", "/v1/pools", body=lines, params=query, headers=headers
        ) as reply:
            await reply.aread()
            return PoolState.model_validate(parse_json(reply))

    async def pools(self, **wanted: str | None) -> list[PoolState]:
        """All pools by name, or those that meet the filters of the API."""
        pages = self._pages("/v1/pools", PoolPage, **wanted)
        return [pool async for page in pages for pool in page.pools]

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        """A pool by id or name; a service says for which tenant it asks."""
        headers = {"Triforge-Tenant": tenant} if tenant else None
        path = f"/v1/pools/{segment(pool)}"
        reply = await request(self._http, "GET", path, headers=headers)
        return PoolState.model_validate(parse_json(reply))

    async def change_pool(
        self, pool: str, verb: Literal["pause", "resume", "retire"], who: Change
    ) -> PoolState:
        """Pause, resume or retire a pool."""
        return PoolState.model_validate(
            await self._change(f"/v1/pools/{segment(pool)}/{verb}", who)
        )

    async def set_approval(self, pool: str, change: PoolChange) -> PoolState:
        """Say whether rewrites of a pool wait for a person."""
        reply = await request(self._http, "PATCH", f"/v1/pools/{segment(pool)}", body=change)
        return PoolState.model_validate(parse_json(reply))

    async def tasks(self, pool: str, **wanted: str | None) -> AsyncIterator[Task]:
        """A pool's task versions in order of split, position, version; those that meet the filters of the API."""
        async for page in self._pages(f"/v1/pools/{segment(pool)}/tasks", TaskPage, **wanted):
            for task in page.tasks:
                yield task

    async def proposals(self, pool: str, **wanted: str | None) -> list[Proposal]:
        """A pool's rewrites, oldest first; those that meet the filters of the API."""
        pages = self._pages(f"/v1/pools/{segment(pool)}/proposals", ProposalPage, **wanted)
        return [proposal async for page in pages for proposal in page.proposals]

    async def changes(self, pool: str, **wanted: str | None) -> AsyncIterator[AuditEntry]:
        """What people changed about a pool, oldest first."""
        async for page in self._pages(f"/v1/pools/{segment(pool)}/audit", AuditPage, **wanted):
            for entry in page.changes:
                yield entry

    async def export(
        self, pool: str, content: Literal["tasks", "versions", "proposals"] = "tasks"
    ) -> AsyncIterator[bytes]:
        """A pool as JSONL, in parts of any size."""
        path = f"/v1/pools/{segment(pool)}/export"
        async with streamed(self._http, "GET", path, params={"content": content}) as reply:
            async for part in reply.aiter_bytes():
                yield part

    async def _pages(
        self, path: str, kind: type[_Page], **params: str | None
    ) -> AsyncIterator[_Page]:
        """All pages of a listing, following the cursor."""
        cursor: str | None = None
        while True:
            reply = await get_json(
                self._http, path, params={**params, "cursor": cursor, "limit": _PAGE}
            )
            page = kind.model_validate(reply)
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    async def task(self, task_id: str) -> TaskDetail:
        """A task version with its measurements."""
        return TaskDetail.model_validate(
            await get_json(self._http, f"/v1/tasks/{segment(task_id)}")
        )

    async def lineage(self, task_id: str) -> Lineage:
        """All versions of the task's slot."""
        return Lineage.model_validate(
            await get_json(self._http, f"/v1/tasks/{segment(task_id)}/lineage")
        )

    async def change_task(
        self,
        task_id: str,
        verb: Literal["pause", "resume", "retire", "pin", "unpin"],
        who: Change,
    ) -> TaskDetail:
        """Change the slot of a version; its current version comes back."""
        return TaskDetail.model_validate(
            await self._change(f"/v1/tasks/{segment(task_id)}/{verb}", who)
        )

    async def roll_back(self, task_id: str, wanted: Rollback) -> TaskDetail:
        """Undo rewrites; the new version comes back."""
        path = f"/v1/tasks/{segment(task_id)}/rollback"
        return TaskDetail.model_validate(await self._change(path, wanted))

    async def proposal(self, proposal_id: str) -> ProposalDetail:
        """A rewrite with everything said, measured and done about it."""
        reply = await get_json(self._http, f"/v1/proposals/{segment(proposal_id)}")
        return ProposalDetail.model_validate(reply)

    async def decide(
        self, proposal_id: str, decision: Literal["approve", "reject"], who: Change
    ) -> ProposalDetail:
        """Approve or reject a rewrite."""
        reply = await self._change(f"/v1/proposals/{segment(proposal_id)}/{decision}", who)
        return ProposalDetail.model_validate(reply)

    async def _change(self, path: str, body: Change | Rollback) -> Any:
        return await post_json(self._http, path, body)

    async def plan(self, pool_id: str, wanted: PlanRequest) -> list[PlannedGroup]:
        """What a step plays. Asked again while env_adapter restarts: the answer stays the same.

        Raises:
            UnavailableError: nothing answers, or people have paused the pool: who asks waits.
            ConflictError: the pool is retired, or nothing of it can be played.
        """
        path = f"/v1/pools/{segment(pool_id)}/plans"
        try:
            reply = await post_json(
                self._http, path, wanted, deadline_s=_DEADLINE_S, repeatable=True
            )
        except PausedError as error:
            raise UnavailableError(error.detail) from None
        return list(Plan.model_validate(reply).groups)
