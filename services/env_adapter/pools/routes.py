"""The routes of pools, tasks and proposals, and the rights that each needs."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import IO, Annotated, Any, Final, get_args

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from services.env_adapter.pools.changes import (
    Change,
    Changes,
    Decision,
    PoolAction,
    PoolChange,
    Rollback,
    TaskAction,
)
from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.plans import Planner
from services.env_adapter.pools.store import PoolStore
from triforge.access.callers import Rule
from triforge.environments.rows import JSONL, object_of, read_json, read_lines
from triforge.environments.tasks import request_of
from triforge.errors import InputError
from triforge.types import (
    Approval,
    Lineage,
    Page,
    PlannedGroup,
    PlanRequest,
    PoolRequest,
    PoolState,
    Proposal,
    ProposalDetail,
    ProposalState,
    Split,
    Task,
    TaskDetail,
    TaskState,
)
from triforge.web.description import answers, files

_READ: Final = Rule(requires="read")
_SUBMIT: Final = Rule(requires="submit")
_ADMIN: Final = Rule(requires="admin")  # changes that are final

RULES: Final[Mapping[str, Rule]] = {
    "GET /v1/pools": _READ,
    "POST /v1/pools": _SUBMIT,
    "GET /v1/pools/{pool}": _READ,
    "PATCH /v1/pools/{pool}": _SUBMIT,
    "GET /v1/pools/{pool}/export": _READ,
    "GET /v1/pools/{pool}/tasks": _READ,
    "GET /v1/pools/{pool}/check": _READ,
    "POST /v1/pools/{pool}/plans": Rule(requires="service"),
    "POST /v1/pools/{pool}/pause": _SUBMIT,
    "POST /v1/pools/{pool}/resume": _SUBMIT,
    "POST /v1/pools/{pool}/retire": _ADMIN,
    "GET /v1/tasks/{task_id}": _READ,
    "GET /v1/tasks/{task_id}/lineage": _READ,
    "POST /v1/tasks/{task_id}/rollback": _ADMIN,
    "POST /v1/tasks/{task_id}/pause": _SUBMIT,
    "POST /v1/tasks/{task_id}/resume": _SUBMIT,
    "POST /v1/tasks/{task_id}/retire": _ADMIN,
    "POST /v1/tasks/{task_id}/pin": _SUBMIT,
    "POST /v1/tasks/{task_id}/unpin": _SUBMIT,
    "GET /v1/pools/{pool}/proposals": _READ,
    "GET /v1/proposals/{proposal_id}": _READ,
    "POST /v1/proposals/{proposal_id}/approve": _SUBMIT,
    "POST /v1/proposals/{proposal_id}/reject": _SUBMIT,
}

Limit = Annotated[int, Query(ge=1, le=1000)]
Text = Annotated[str, Query(max_length=200)]
OptionsText = Annotated[str, Query(max_length=16_000)]
Key = Annotated[str | None, Header(alias="idempotency-key", max_length=200)]

_IN_MEMORY: Final = 2**20  # bytes of an upload; the rest goes to a temporary file
_UPLOAD: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": PoolRequest.model_json_schema()},
            JSONL: {"schema": {"type": "string", "description": "one {params, split?} a line"}},
        },
    }
}
_CREATED: Final[dict[int | str, dict[str, Any]]] = {
    **answers(409),
    200: {"model": PoolState, "description": "Made before"},
}
_CONFLICT: Final = answers(409)  # the state forbids it, or several tenants have a pool of that name


def pool_routes(store: PoolStore, maker: PoolMaker, planner: Planner) -> APIRouter:
    """Return the routes that make, read and plan pools."""
    router = APIRouter(prefix="/v1/pools", tags=["pools"])

    @router.post("", status_code=201, openapi_extra=_UPLOAD, responses=_CREATED)
    async def create_pool(
        request: Request,
        response: Response,
        name: Text = "",
        environment: Text = "",
        approval: Approval = "automatic",
        idempotency_key: Key = None,
    ) -> PoolState:
        """Make a pool from JSON, or from JSONL with `name`, `environment` and `approval` in the query."""
        head = {"name": name, "environment": environment, "approval": approval}
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        async with _upload(request.stream()) as (file, digest):
            pool, new = await asyncio.to_thread(
                _create, maker, file, digest, head if kind == JSONL else None, idempotency_key
            )
        response.status_code = 201 if new else 200
        response.headers["Location"] = f"/v1/pools/{pool.id}"
        return pool

    @router.get("")
    def list_pools(cursor: str = "", limit: Limit = 100) -> Page[PoolState]:
        """List pools by name."""
        return store.pools(cursor=cursor, limit=limit)

    @router.get("/{pool}", responses=_CONFLICT)
    def show_pool(pool: str) -> PoolState:
        """Return a pool with its counts, by id or name."""
        return store.pool(pool)

    @router.get("/{pool}/tasks", responses=_CONFLICT)
    def list_tasks(
        pool: str,
        state: TaskState | None = None,
        split: Split | None = None,
        search: Text = "",
        cursor: str = "",
        limit: Limit = 100,
    ) -> Page[Task]:
        """List the task versions of a pool; `search` is a part of the instruction."""
        return store.tasks(
            pool, state=state, split=split, search=search, cursor=cursor, limit=limit
        )

    @router.get("/{pool}/check", responses=_CONFLICT)
    def check_pool(pool: str, options: OptionsText = "{}") -> PoolState:
        """Return the pool if its tasks can be played with its own options and `options`, a JSON object, over them."""
        return maker.check(store.pool(pool), object_of(options, "options"))

    @router.get(
        "/{pool}/export", response_class=StreamingResponse, responses=files(JSONL) | _CONFLICT
    )
    def export_pool(pool: str, split: Split | None = None) -> StreamingResponse:
        """Return the tasks of a pool as JSONL, in the form in which they are uploaded."""
        return StreamingResponse(store.export(pool, split), media_type=JSONL)

    @router.post("/{pool}/plans", responses=_CONFLICT)
    def make_plan(pool: str, request: PlanRequest) -> Page[PlannedGroup]:
        """Return the groups that a step plays; a repeated request gives the same plan."""
        return planner.plan(pool, request)

    return router


def pool_changes(changes: Changes) -> APIRouter:
    """Return the routes that change pools."""
    router = APIRouter(prefix="/v1/pools/{pool}", tags=["pools"])

    @router.patch("", responses=_CONFLICT)
    def change_pool(pool: str, change: PoolChange) -> PoolState:
        """Choose whether rewrites wait for a person before they replace their tasks."""
        return changes.set_approval(pool, change)

    def add_action(action: PoolAction) -> None:
        @router.post(
            f"/{action}",
            name=f"{action}_pool",
            description=f"{action.capitalize()} a pool; a repeated request changes nothing.",
            responses=_CONFLICT,
        )
        def act(pool: str, change: Change | None = None) -> PoolState:
            return changes.set_pool(pool, action, change or Change())

    for action in get_args(PoolAction):
        add_action(action)
    return router


def task_routes(store: PoolStore, changes: Changes) -> APIRouter:
    """Return the routes of tasks."""
    router = APIRouter(prefix="/v1/tasks/{task_id}", tags=["tasks"])

    @router.get("")
    def show_task(task_id: str) -> TaskDetail:
        """Return a task version with its measurements."""
        return store.detail(task_id)

    @router.get("/lineage")
    def show_lineage(task_id: str) -> Lineage:
        """Return all versions of the task's slot, with their rewrites and measurements."""
        return store.lineage(task_id)

    @router.post("/rollback", responses=_CONFLICT)
    def roll_back(task_id: str, rollback: Rollback) -> TaskDetail:
        """Undo the rewrites between an ancestor and the slot's current version; return the new version."""
        return store.detail(changes.roll_back(task_id, rollback))

    def add_action(action: TaskAction) -> None:
        @router.post(
            f"/{action}",
            name=f"{action}_task",
            description=f"{action.capitalize()} the slot that a version belongs to; return its current version.",
            responses=_CONFLICT,
        )
        def act(task_id: str, change: Change | None = None) -> TaskDetail:
            return store.detail(changes.set_task(task_id, action, change or Change()))

    for action in get_args(TaskAction):
        add_action(action)
    return router


def proposal_routes(store: PoolStore, changes: Changes) -> APIRouter:
    """Return the routes of proposals."""
    router = APIRouter(prefix="/v1", tags=["proposals"])

    @router.get("/pools/{pool}/proposals", responses=_CONFLICT)
    def list_proposals(
        pool: str,
        state: ProposalState | None = None,
        run_id: Text = "",
        cursor: str = "",
        limit: Limit = 100,
    ) -> Page[Proposal]:
        """List the proposals of a pool, oldest first."""
        return store.proposals(pool, state=state, run_id=run_id, cursor=cursor, limit=limit)

    @router.get("/proposals/{proposal_id}")
    def show_proposal(proposal_id: str) -> ProposalDetail:
        """Return a proposal: diagnosis, prompt, answer, checks, both measurements, verdict."""
        return store.proposal(proposal_id)

    def add_decision(decision: Decision) -> None:
        @router.post(
            f"/proposals/{{proposal_id}}/{decision}",
            name=f"{decision}_proposal",
            description=f"{decision.capitalize()} a proposal by hand; a repeated request changes nothing.",
            responses=_CONFLICT,
        )
        def act(proposal_id: str, change: Change | None = None) -> ProposalDetail:
            changes.decide(proposal_id, decision, change or Change())
            return store.proposal(proposal_id)

    for decision in get_args(Decision):
        add_decision(decision)
    return router


@asynccontextmanager
async def _upload(parts: AsyncIterator[bytes]) -> AsyncIterator[tuple[IO[bytes], str]]:
    """Receive a body in a temporary file; yield the file at its first byte, and the SHA-256 of the body."""
    digest = hashlib.sha256()
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
        try:
            async for part in parts:
                digest.update(part)
                await asyncio.to_thread(file.write, part)
        except ClientDisconnect:
            raise InputError("body: the upload broke off; nothing was stored") from None
        file.seek(0)
        yield file, digest.hexdigest()


def _create(
    maker: PoolMaker, file: IO[bytes], digest: str, head: dict[str, str] | None, key: str | None
) -> tuple[PoolState, bool]:
    """Make a pool of an upload: JSONL with a separate head, or JSON that holds its own."""
    if head is None:
        document, rows = read_json(file)
        request = request_of(document)
    else:
        request, rows = request_of(head), read_lines(file)
        digest = hashlib.sha256(f"{request.model_dump_json()}{digest}".encode()).hexdigest()
    return maker.create(request, rows, key=key or None, digest=digest)
