"""A sidecar in one event loop, with a scripted judge and rewriter."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from sqlalchemy import func, select
from starlette.requests import Request
from starlette.responses import Response

from services.env_adapter.adaptation.adapter import AdaptWorker, make_adapter
from services.env_adapter.adaptation.settings import RunSettings
from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.plans import Planner
from services.env_adapter.pools.store import PoolStore
from services.env_adapter.rollout.worker import RolloutWorker
from services.env_adapter.sessions.groups import SessionGroups
from services.env_adapter.sessions.store import SessionStore
from services.reward.worker import JudgeWorker
from services.trainer.loop.orchestrator import Orchestrator
from services.trainer.loop.parts import Parts
from services.trainer.runs.store import RunStore
from tests.service.env_service import api
from tests.service.fake_loop import FakeLearner, FakeService
from tests.service.fragile import Troubles
from tests.service.keyed import fresh
from tests.service.test_env_adapter_adaptation import first_choice
from tests.service.test_policy_http import serving
from triforge.broker import (
    ADAPT_QUEUE,
    ADAPT_TASK,
    JUDGE_QUEUE,
    JUDGE_TASK,
    ROLLOUT_QUEUE,
    ROLLOUT_TASK,
    MemoryBroker,
    SessionLog,
)
from triforge.broker.jobs import Job
from triforge.config import Settings, parse
from triforge.environments import registry
from triforge.event_loop import end_task
from triforge.sidecar import Sidecar
from triforge.store.artifacts import ArtifactStore
from triforge.store.tables import SessionGroupRow
from triforge.supervisor.ports import free_port
from triforge.testing import FakeGenerate
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    GenerateSpec,
    GroupTask,
    JudgeTask,
    PlannedGroup,
    PlanRequest,
    PoolRequest,
    RunState,
    TaskOutcome,
)

CONFIG: dict[str, Any] = {
    "run": {"steps": 1000, "groups_per_step": 3, "eval_every": 0, "staleness_bound": 1},
    "models": {"reward": {"path": "/models/reward"}, "rewriter": {"path": "/models/rewriter"}},
    "env_adapter": {"played_by": "trainer", "rollouts": 4, "options": {"wording": "terse"}},
    "reward": {"votes": 1},
    "algorithm": {"overrides": {"reward_band": "none", "acceptance": "paper"}},
}


TASKS = GenerateSpec(count=8, seed=5)


class LocalPlans:
    """The plans of env_adapter, without a socket."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    async def plan(self, pool_id: str, wanted: PlanRequest) -> list[PlannedGroup]:
        return list((await asyncio.to_thread(self._planner.plan, pool_id, wanted)).items)


class Deployment:
    """All services of a sidecar, which `kill` ends in the middle of their work; SQL stays, and what is in flight unless `empty` loses it.

    Attributes:
        exchange: requests and answers of the sidecar's routes, in order.
    """

    def __init__(self, folder: Path, *, generate: GenerateSpec = TASKS) -> None:
        self.exchange: list[dict[str, Any]] = []
        self._folder, self._port = folder, free_port()
        self.database = fresh(folder)
        self.store = RunStore(self.database)
        self.broker = MemoryBroker(lease_s=0.2)
        self.artifacts = ArtifactStore(str(folder / "artifacts"))
        self.judge = FakeService("reward", Troubles())
        self.learner = FakeLearner(self.broker, self.artifacts, "reward")
        request = PoolRequest(name="kitchen", environment="household", generate=generate)
        self.pool = PoolMaker(self.database, registry.family).create(request, [])[0]
        self._running: contextlib.AsyncExitStack | None = None

    def submit(self, **sections: Any) -> RunState:
        config = parse({**CONFIG, **sections}).model_dump(mode="json")
        return self.store.create(name="run", pool_id=self.pool.id, config=config)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def client(self) -> Sidecar:
        return Sidecar(self.url, "kitchen", patience_s=30.0)

    async def start(self) -> None:
        self._running = contextlib.AsyncExitStack()
        adapt = self._serve_queues()
        settings = Settings(lease_s=0.2, resend_s=0.5)
        parts = Parts(
            store=self.store, broker=self.broker, artifacts=self.artifacts,
            env_adapter=LocalPlans(Planner(self.database)), apis={"reward": self.judge}, settings=settings,
        )  # fmt: skip
        for work in (
            Orchestrator(parts, idle_s=0.02).run_forever(),
            adapt.watch(),
            self.learner.serve(),
        ):
            self._running.push_async_callback(end_task, asyncio.create_task(work))
        await self._running.enter_async_context(serving(self.app(), self._port))

    def app(self) -> FastAPI:
        """Make env_adapter's app."""
        app = api(self.database, log=SessionLog(self.broker))
        app.middleware("http")(self._record)
        return app

    async def _record(self, request: Request, answer: Any) -> Response:
        body = await request.body()
        reply = await answer(request)
        text = b"".join([part async for part in reply.body_iterator])
        self.exchange.append(
            {
                "path": request.url.path, "body": json.loads(body) if body else None,
                "status": reply.status_code, "reply": json.loads(text),
            }
        )  # fmt: skip
        headers = dict(reply.headers)
        return Response(text, status_code=reply.status_code, headers=headers)

    async def kill(self) -> None:
        assert self._running is not None
        await self.broker.close()  # its workers, in the middle of their jobs
        await self._running.aclose()

    def free(self) -> int:
        """Return how many groups can be drawn."""
        free = select(func.count()).where(SessionGroupRow.open, SessionGroupRow.free_count > 0)
        with self.database.read() as session:
            return session.scalar(free) or 0

    def empty(self) -> None:
        """Lose everything that is in flight."""
        self.broker = MemoryBroker(lease_s=0.2)
        self.learner = FakeLearner(self.broker, self.artifacts, "reward")

    async def close(self) -> None:
        await self.kill()
        self.database.close()

    def _serve_queues(self) -> AdaptWorker:
        sessions = SessionGroups(SessionStore(self.database), SessionLog(self.broker), poll_s=0.02)
        rollouts = RolloutWorker(
            broker=self.broker, generate=FakeGenerate(["unasked"]), read_task=PoolStore(self.database).task,
            family=registry.family, sessions=sessions,
        )  # fmt: skip
        judge = JudgeWorker(broker=self.broker, generate_many=self._vote)
        adapt = AdaptWorker(
            broker=self.broker,
            adapter=make_adapter(self.database, registry.family, FakeGenerate(first_choice)),
            settings=RunSettings(self.database).read,
        )
        self.broker.serve(ROLLOUT_QUEUE, Job(ROLLOUT_TASK, GroupTask, rollouts.play))
        self.broker.serve(JUDGE_QUEUE, Job(JUDGE_TASK, JudgeTask, judge.judge))
        self.broker.serve(ADAPT_QUEUE, Job(ADAPT_TASK, TaskOutcome, adapt.handle), concurrency=1)
        return adapt

    async def _vote(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Approve of every other step, by the version that is served."""
        return [
            await FakeGenerate([rf"\boxed{{{1 - 2 * (n % 2)}}}"], version=self.judge.version)(
                request
            )
            for n, request in enumerate(requests)
        ]


@contextlib.asynccontextmanager
async def deployment_of(folder: Path) -> AsyncIterator[Deployment]:
    made = Deployment(folder)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
