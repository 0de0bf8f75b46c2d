"""The routes of the door; they translate and do nothing else."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response

from services.env_adapter.plans import Planner
from services.env_adapter.pools import PoolMaker, loads, parse_lines, parse_request
from services.env_adapter.store import PoolStore
from triforge.errors import InputError
from triforge.messages import (
    Lineage,
    Plan,
    PlanRequest,
    PoolPage,
    PoolRequest,
    PoolState,
    ProposalPage,
    Split,
    TaskDetail,
    TaskPage,
    TaskState,
)

JSONL = "application/x-ndjson"
MAX_BODY = 256 * 2**20  # bytes; 100,000 tasks of 2.5 KB

Limit = Annotated[int, Query(ge=1, le=1000)]
ProposalState = Annotated[str, Query(pattern="^(|pending|accepted|rejected|invalid|rolled_back)$")]

_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": PoolRequest.model_json_schema()},
            JSONL: {"schema": {"type": "string", "description": "one {params, split?} a line"}},
        },
    }
}


def add_routes(app: FastAPI, *, store: PoolStore, maker: PoolMaker, planner: Planner) -> None:
    """Add all routes of env_adapter to its app."""
    app.include_router(_pool_routes(store, maker, planner))
    app.include_router(_task_routes(store))


def _pool_routes(store: PoolStore, maker: PoolMaker, planner: Planner) -> APIRouter:
    router = APIRouter(prefix="/v1/pools")

    @router.post("", status_code=201, response_model=PoolState, openapi_extra=_UPLOAD)
    async def create_pool(
        request: Request,
        response: Response,
        name: str = "",
        environment: str = "",
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> PoolState:
        """Make a pool from JSON, or from JSONL with `name` and `environment` in the query."""
        body = await _body(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()

        def create() -> tuple[PoolState, bool]:
            if kind == JSONL:
                head, rows = parse_lines(body, name=name, environment=environment)
            else:
                head, rows = parse_request(_json(body))
            return maker.create(head, rows, key=idempotency_key or None)

        pool, new = await asyncio.to_thread(create)
        response.status_code = 201 if new else 200
        response.headers["Location"] = f"/v1/pools/{pool.id}"
        return pool

    @router.get("")
    def list_pools(cursor: str = "", limit: Limit = 100) -> PoolPage:
        """Pools by name."""
        return store.pools(cursor=cursor, limit=limit)

    @router.get("/{pool}")
    def show_pool(pool: str) -> PoolState:
        """A pool, by id or name, with its counts."""
        return store.pool(pool)

    @router.get("/{pool}/tasks")
    def list_tasks(
        pool: str,
        state: TaskState | None = None,
        split: Split | None = None,
        cursor: str = "",
        limit: Limit = 100,
    ) -> TaskPage:
        """A pool's task versions."""
        return store.tasks(pool, state=state or "", split=split or "", cursor=cursor, limit=limit)

    @router.get("/{pool}/proposals")
    def list_proposals(
        pool: str,
        state: ProposalState = "",
        run_id: str = "",
        cursor: str = "",
        limit: Limit = 100,
    ) -> ProposalPage:
        """A pool's rewrites with everything said about them, oldest first."""
        return store.proposals(pool, state=state, run_id=run_id, cursor=cursor, limit=limit)

    @router.post("/{pool}/plans")
    def make_plan(pool: str, request: PlanRequest) -> Plan:
        """What a step plays; asking again gives the same plan."""
        return planner.plan(pool, request)

    return router


def _task_routes(store: PoolStore) -> APIRouter:
    router = APIRouter(prefix="/v1/tasks")

    @router.get("/{task_id}")
    def show_task(task_id: str) -> TaskDetail:
        """A task version with its measurements."""
        return store.detail(task_id)

    @router.get("/{task_id}/lineage")
    def show_lineage(task_id: str) -> Lineage:
        """All versions of the task's slot, with their rewrites and measurements."""
        return store.lineage(task_id)

    return router


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise InputError(
                f"body: larger than {MAX_BODY} bytes; split the tasks over several pools"
            )
    return bytes(body)


def _json(body: bytes) -> Any:
    try:
        return loads(body)
    except ValueError as error:
        raise InputError(f"body: not JSON: {error}; JSONL needs the content type {JSONL}") from None
