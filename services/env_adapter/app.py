"""The REST API of env_adapter: pools, tasks, proposals, plans, sessions and the sidecar."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.env_adapter.pools import routes as pools
from services.env_adapter.pools.changes import Changes
from services.env_adapter.pools.creation import FindFamily, PoolMaker
from services.env_adapter.pools.plans import Planner
from services.env_adapter.pools.store import PoolStore
from services.env_adapter.sessions import routes as sessions
from services.env_adapter.sessions.routes import Sessions
from services.env_adapter.sessions.store import SessionStore
from services.env_adapter.sidecar import routes as sidecar
from services.env_adapter.sidecar.routes import Sidecar
from triforge.access.callers import Rule
from triforge.broker import SessionLog
from triforge.environments.rows import JSONL
from triforge.errors import TriforgeError
from triforge.store.database import Database
from triforge.web.app import install
from triforge.web.guard import Entrance, guard
from triforge.web.limits import MAX_BODY, MEBIBYTE, Bounds

RULES: Final[Mapping[str, Rule]] = {**pools.RULES, **sessions.RULES, **sidecar.RULES}

_PRUNE_S: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The objects that the API uses; `family` finds an environment family, agents reach the policy at `policy_url`."""

    database: Database
    family: FindFamily
    log: SessionLog
    policy_url: str = "http://127.0.0.1:8001"
    session_days: int = 30
    registry: CollectorRegistry = REGISTRY
    max_upload: int = 256 * MEBIBYTE  # bytes of a pool's upload
    entrance: Entrance = field(default_factory=Entrance)


class ProposalGauge(Collector):
    """The gauge of proposals by pool and state, read from the database: the adapt workers have no API of their own."""

    def __init__(self, store: PoolStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge; nothing while the database is away."""
        gauge = GaugeMetricFamily(
            "triforge_env_adapter_proposals",
            "Task rewrites by pool and state.",
            labels=["pool", "state"],
        )
        try:
            for pool, state, count in self._store.proposal_counts():
                gauge.add_metric([pool, state], count)
        except TriforgeError:
            return
        yield gauge

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering reads no database."""
        return []


async def _prune(store: SessionStore, days: int) -> None:
    while True:
        with contextlib.suppress(TriforgeError):  # the database is away: try again in an hour
            await asyncio.to_thread(store.prune, days * 86_400.0)
        await asyncio.sleep(_PRUNE_S)


def add_routes(app: FastAPI, *, parts: Parts) -> None:
    """Add all routes to an app."""
    store, changes = PoolStore(parts.database), Changes(parts.database)
    maker, planner = PoolMaker(parts.database, parts.family), Planner(parts.database)
    kept = SessionStore(parts.database)
    app.include_router(pools.pool_routes(store, maker, planner))
    app.include_router(pools.pool_changes(changes))
    app.include_router(pools.task_routes(store, changes))
    app.include_router(pools.proposal_routes(store, changes))
    app.include_router(Sidecar(parts.database, parts.log).router())
    app.include_router(Sessions(kept, parts.log, store.task, parts.policy_url).router())


def create_app(*, parts: Parts) -> FastAPI:
    """Make the ASGI app."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pruning = asyncio.create_task(_prune(SessionStore(parts.database), parts.session_days))
        try:
            yield
        finally:
            pruning.cancel()

    app = FastAPI(title="triforge env_adapter", version="1", lifespan=lifespan)

    async def ready() -> None:
        await asyncio.to_thread(parts.database.ping)

    parts.registry.register(ProposalGauge(PoolStore(parts.database)))
    install(
        app,
        ready=ready,
        registry=parts.registry,
        bodies={sidecar.REPORT: Bounds(MAX_BODY, numbers=sidecar.NUMBERS)},
        uploads={"POST /v1/pools": parts.max_upload},
        media={"POST /v1/pools": JSONL},
        origins=parts.entrance.origins,
    )
    add_routes(app, parts=parts)
    guard(app, RULES, parts.entrance)
    return app
