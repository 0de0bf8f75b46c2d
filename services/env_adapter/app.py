"""The service's API: pools, tasks, lineage and plans over REST."""

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

from services.env_adapter.adaptation import routes as adaptation
from services.env_adapter.pools import routes as pools
from services.env_adapter.pools.changes import Changes
from services.env_adapter.pools.creation import FindFamily, PoolMaker
from services.env_adapter.pools.plans import Planner
from services.env_adapter.pools.store import PoolStore
from services.env_adapter.rollout import routes as rollout
from services.env_adapter.rollout.plays import Plays
from services.env_adapter.sessions import routes as sessions
from services.env_adapter.sessions.store import SessionStore
from services.env_adapter.sessions.trajectories import Sessions
from triforge.access.callers import Rule
from triforge.broker import SessionLog
from triforge.environments.rows import JSONL
from triforge.errors import TriforgeError
from triforge.store.database import Database
from triforge.web.app import install
from triforge.web.guard import Entrance, guard
from triforge.web.limits import MEBIBYTE, Bounds

RULES: Final[Mapping[str, Rule]] = {
    **pools.RULES,
    **adaptation.RULES,
    **rollout.RULES,
    **sessions.RULES,
}

_PRUNE_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the API is made of; `family` finds an environment family by name, agents find the policy at `policy_url`."""

    database: Database
    family: FindFamily
    log: SessionLog
    policy_url: str = "http://127.0.0.1:8001"
    session_days: int = 30
    registry: CollectorRegistry = REGISTRY
    max_upload: int = 256 * MEBIBYTE  # bytes of a pool's upload
    entrance: Entrance = field(default_factory=Entrance)


@dataclass(frozen=True, kw_only=True)
class Api:
    """The objects that the routes call."""

    store: PoolStore
    maker: PoolMaker
    planner: Planner
    changes: Changes
    plays: Plays
    sessions: Sessions


def add_routes(app: FastAPI, *, api: Api) -> None:
    """Add all routes of env_adapter to an app."""
    app.include_router(pools.pool_routes(api.store, api.maker, api.planner, api.changes))
    app.include_router(adaptation.proposal_routes(api.store, api.changes))
    app.include_router(rollout.play_routes(api.plays))
    app.include_router(sessions.session_routes(api.sessions))


class ProposalGauge(Collector):
    """`triforge_env_adapter_proposals{pool,state}`, read from the database when asked: the workers have no API of their own."""

    def __init__(self, store: PoolStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """The gauge; empty while the database is away."""
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
        """Nothing: registering must not ask the database."""
        return []


async def _prune(kept: SessionStore, days: int) -> None:
    while True:
        with contextlib.suppress(TriforgeError):  # the database is away; there is another hour
            await asyncio.to_thread(kept.prune, days * 86_400.0)
        await asyncio.sleep(_PRUNE_S)


def create_app(*, parts: Parts) -> FastAPI:
    """The ASGI app of env_adapter."""
    store, kept = PoolStore(parts.database), SessionStore(parts.database)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pruning = asyncio.create_task(_prune(kept, parts.session_days))
        try:
            yield
        finally:
            pruning.cancel()

    app = FastAPI(title="triforge env_adapter", version="1", lifespan=lifespan)

    async def ready() -> None:
        await asyncio.to_thread(parts.database.ping)

    parts.registry.register(ProposalGauge(store))
    install(
        app,
        ready=ready,
        registry=parts.registry,
        uploads={"POST /v1/pools": parts.max_upload},
        bodies={"POST /v1/tasks/{task_id}/play": Bounds(MEBIBYTE)},
        media={"POST /v1/pools": JSONL},
        origins=parts.entrance.origins,
    )
    api = Api(
        store=store,
        maker=PoolMaker(parts.database, parts.family),
        planner=Planner(parts.database),
        changes=Changes(parts.database),
        plays=Plays(store, parts.family),
        sessions=Sessions(store=kept, log=parts.log, task=store.task, url=parts.policy_url),
    )
    add_routes(app, api=api)
    guard(app, RULES, parts.entrance)
    return app
