"""The API of env_adapter for tests: in process, or on a port; and rewrites as an adapt worker would have left them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from services.env_adapter.app import Parts, create_app
from services.env_adapter.pools.rows import new_row, task_row
from services.env_adapter.pools.slots import successor
from services.env_adapter.pools.store import PoolStore
from tests.sections import plain_proposal
from triforge.broker import MemoryBroker, SessionLog
from triforge.environments import registry
from triforge.rollout.protocols import TaskDraft
from triforge.store.database import Database
from triforge.types import Proposal, TaskState

GAME: dict[str, Any] = {
    "receptacles": {"shelf 1": "open", "cabinet 1": "closed"},
    "objects": {"mug 1": "shelf 1"},
    "goal": {"type": "place", "object": "mug", "target": "cabinet"},
    "horizon": 20,
    "hint": False,
}


def game(horizon: int = 20) -> dict[str, Any]:
    """Parameters of a household task; each horizon is another task."""
    return {**GAME, "horizon": horizon}


def api(database: Database, **parts: Any) -> FastAPI:
    """The service's app."""
    usual: dict[str, Any] = {
        "family": registry.family,
        "registry": CollectorRegistry(),
        "log": SessionLog(MemoryBroker()),
    }
    return create_app(parts=Parts(database=database, **{**usual, **parts}))


def rewrite(database: Database, task_id: str, state: TaskState, group: str = "g") -> Proposal:
    """A rewrite of a task in some state, with its candidate: the same game with a longer horizon."""
    task = PoolStore(database).task(task_id)
    params = {**task.params, "horizon": int(str(task.params["horizon"])) + 1}
    draft = registry.family("household").validate(params)
    with database.write() as session:
        parent = task_row(session, task_id)
        candidate = successor(
            session, parent, TaskDraft(params=draft.params, instruction="x"), state=state
        )
        proposal = plain_proposal(
            f"prop-{group}",
            pool_id=task.pool_id,
            slot=task.slot,
            parent_id=task.id,
            candidate_id=candidate.id,
            state="pending" if state == "pending" else "awaiting",
            instruction_before=task.instruction,
            instruction_after=draft.instruction,
            verdict="" if state == "pending" else "accepted",
            reason="harder beyond chance",
        )
        session.add_all([candidate, new_row(proposal)])
    return proposal


def client_of(app: ASGIApp, *, raises: bool = True) -> httpx.AsyncClient:
    """A client of an app in this process, which raises the app's errors or gets the answer to them."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=raises)
    return httpx.AsyncClient(transport=transport, base_url="http://service")


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The app behind a port of its own, in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        (listening,) = server.servers
        port = listening.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
