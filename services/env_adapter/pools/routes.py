"""The routes of pools and tasks, and the rights that each needs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, get_args

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from services.env_adapter.pools.changes import Changes, TaskAction
from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.plans import Planner
from services.env_adapter.pools.requests import Change, PoolChange, Rollback
from services.env_adapter.pools.slots import pool_tag
from services.env_adapter.pools.store import Content, PoolStore
from services.env_adapter.pools.uploads import Upload, receive
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
    PoolStatus,
    Split,
    Task,
    TaskDetail,
    TaskState,
)
from triforge.web.description import answers, files

_READ = Rule(requires="read")
_SUBMIT = Rule(requires="submit")
_ADMIN = Rule(requires="admin")  # what is for good

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
}

Limit = Annotated[int, Query(ge=1, le=1000)]
Version = Annotated[int | None, Query(ge=0, le=10**9)]
Text = Annotated[str, Query(max_length=200)]
OptionsText = Annotated[str, Query(max_length=16_000)]
IfMatch = Annotated[str | None, Header(max_length=1000)]

_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": PoolRequest.model_json_schema()},
            JSONL: {"schema": {"type": "string", "description": "one {params, split?} a line"}},
        },
    }
}
_MADE: dict[int | str, dict[str, Any]] = {
    **answers(409),
    200: {"model": PoolState, "description": "Made before"},
}
_CHANGE = answers(409, 412)
_NAMED = answers(409)  # several tenants have a pool of that name
_POOL_STATES: dict[str, PoolStatus] = {"pause": "paused", "resume": "active", "retire": "retired"}


def pool_routes(
    store: PoolStore, maker: PoolMaker, planner: Planner, changes: Changes
) -> APIRouter:
    """Return the routes of pools and tasks."""
    router = APIRouter()
    router.include_router(_making(store, maker, planner))
    router.include_router(_reading(store))
    router.include_router(_pool_changes(changes))
    router.include_router(_tasks(store, changes))
    return router


def _making(store: PoolStore, maker: PoolMaker, planner: Planner) -> APIRouter:
    router = APIRouter(prefix="/v1/pools", tags=["pools"])

    @router.post("", status_code=201, openapi_extra=_UPLOAD, responses=_MADE)
    async def create_pool(
        request: Request,
        response: Response,
        name: Text = "",
        environment: Text = "",
        approval: Approval = "automatic",
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> PoolState:
        """Make a pool from JSON, or from JSONL with `name`, `environment` and `approval` in the query."""
        try:
            upload = await receive(request.stream())
        except ClientDisconnect:
            raise InputError("body: the upload broke off; nothing was stored") from None
        head = {"name": name, "environment": environment, "approval": approval}
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            pool, new = await asyncio.to_thread(
                _create, maker, upload, head if kind == JSONL else None, idempotency_key
            )
        finally:
            upload.close()
        response.status_code = 201 if new else 200
        response.headers["Location"] = f"/v1/pools/{pool.id}"
        return _tagged(pool, response)

    @router.get("/{pool}/check", responses=_NAMED)
    def check_pool(pool: str, options: OptionsText = "{}") -> PoolState:
        """The pool, if its tasks can be played here with its own options and a run's over them, a JSON object; the family refuses what it does not know."""
        return maker.check(store.pool(pool), object_of(options, "options"))

    @router.get("/{pool}/export", response_class=StreamingResponse, responses=files(JSONL) | _NAMED)
    def export_pool(
        pool: str, content: Content = "tasks", split: Split | None = None
    ) -> StreamingResponse:
        """A pool as JSONL: its tasks as they are uploaded, all versions, or all proposals."""
        return StreamingResponse(store.export(pool, content, split), media_type=JSONL)

    @router.post("/{pool}/plans", responses=_NAMED)
    def make_plan(pool: str, request: PlanRequest) -> Page[PlannedGroup]:
        """What a step plays; asking again gives the same plan."""
        return planner.plan(pool, request)

    return router


def _create(
    maker: PoolMaker, upload: Upload, head: dict[str, str] | None, key: str | None
) -> tuple[PoolState, bool]:
    """Make a pool of an upload: JSONL with its head, or JSON that brings one."""
    if head is None:
        document, rows = read_json(upload.start())
        request, digest = request_of(document), upload.digest
    else:
        request, rows = request_of(head), read_lines(upload.start())
        digest = hashlib.sha256(f"{request.model_dump_json()}{upload.digest}".encode()).hexdigest()
    return maker.create(request, rows, key=key or None, digest=digest)


def _tagged(pool: PoolState, response: Response) -> PoolState:
    response.headers["ETag"] = pool_tag(pool)
    return pool


def _reading(store: PoolStore) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/pools", tags=["pools"])
    def list_pools(
        state: PoolStatus | None = None,
        approval: Approval | None = None,
        environment: Text = "",
        search: Text = "",
        cursor: str = "",
        limit: Limit = 100,
    ) -> Page[PoolState]:
        """Pools by name; `search` is a part of it."""
        wanted = {"state": state, "approval": approval, "environment": environment}
        return store.pools(**wanted, search=search, cursor=cursor, limit=limit)

    @router.get("/pools/{pool}", tags=["pools"], responses=_NAMED)
    def show_pool(pool: str, response: Response) -> PoolState:
        """A pool, by id or name, with its counts."""
        return _tagged(store.pool(pool), response)

    @router.get("/pools/{pool}/tasks", tags=["pools"], responses=_NAMED)
    def list_tasks(
        pool: str,
        state: TaskState | None = None,
        split: Split | None = None,
        slot: Text = "",
        kind: Text = "",
        version: Version = None,
        pinned: bool | None = None,
        search: Text = "",
        cursor: str = "",
        limit: Limit = 100,
    ) -> Page[Task]:
        """A pool's task versions; `search` is a part of the instruction."""
        wanted = {"state": state, "split": split, "slot": slot, "kind": kind}
        return store.tasks(
            pool, **wanted, version=version, pinned=pinned, search=search, cursor=cursor, limit=limit
        )  # fmt: skip

    return router


def _pool_changes(changes: Changes) -> APIRouter:
    router = APIRouter(prefix="/v1/pools/{pool}", tags=["pools"])

    @router.patch("", responses=_CHANGE)
    def change_pool(
        pool: str, change: PoolChange, response: Response, if_match: IfMatch = None
    ) -> PoolState:
        """Say whether rewrites wait for a person before they replace their tasks."""
        return _tagged(changes.set_approval(pool, change, match=if_match), response)

    def add_verb(name: str, to: PoolStatus) -> None:
        @router.post(
            f"/{name}",
            name=f"{name}_pool",
            description=f"{name.capitalize()} a pool; asking again changes nothing.",
            responses=_CHANGE,
        )
        def act(
            pool: str, response: Response, who: Change | None = None, if_match: IfMatch = None
        ) -> PoolState:
            found = changes.set_pool(pool, to, who or Change(), match=if_match)
            return _tagged(found, response)

    for name, to in _POOL_STATES.items():
        add_verb(name, to)
    return router


def _tasks(store: PoolStore, changes: Changes) -> APIRouter:
    router = APIRouter(prefix="/v1/tasks/{task_id}", tags=["tasks"])

    def shown(task_id: str, response: Response) -> TaskDetail:
        response.headers["ETag"] = store.slot_tag(task_id)
        return store.detail(task_id)

    @router.get("")
    def show_task(task_id: str, response: Response) -> TaskDetail:
        """A task version with its measurements."""
        return shown(task_id, response)

    @router.get("/lineage")
    def show_lineage(task_id: str) -> Lineage:
        """All versions of the task's slot, with their rewrites and measurements, and what people did."""
        return store.lineage(task_id)

    @router.post("/rollback", responses=_CHANGE)
    def roll_back(
        task_id: str, wanted: Rollback, response: Response, if_match: IfMatch = None
    ) -> TaskDetail:
        """Undo the rewrites between an ancestor and what the task's slot plays; answers with the new version."""
        return shown(changes.roll_back(task_id, wanted, match=if_match), response)

    def add_verb(action: TaskAction) -> None:
        @router.post(
            f"/{action}",
            name=f"{action}_task",
            description=f"{action.capitalize()} the slot that a version belongs to; answers with its current version.",
            responses=_CHANGE,
        )
        def act(
            task_id: str, response: Response, who: Change | None = None, if_match: IfMatch = None
        ) -> TaskDetail:
            current = changes.set_task(task_id, action, who or Change(), match=if_match)
            return shown(current, response)

    for action in get_args(TaskAction):
        add_verb(action)
    return router
