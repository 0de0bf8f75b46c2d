"""A whole deployment in one process: the services' own code on the in-memory broker, and engines that decode in a thread.

Pools are made and planned by env_adapter's API without a socket; rollout, judge and adapt workers, learners and the
orchestrator run in one event loop. What differs from `triforge up` is transport: no policy service stands in front of the
engines, and jobs are not kept when the process ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import httpx
import torch

from experiments.model import LocalModel
from services.env_adapter.adaptation.adapter import AdaptWorker, make_adapter
from services.env_adapter.adaptation.settings import RunSettings
from services.env_adapter.app import Parts as PoolParts
from services.env_adapter.app import create_app
from services.env_adapter.pools.store import PoolStore
from services.env_adapter.rollout.worker import RolloutWorker
from services.reward.worker import JudgeWorker
from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.parallel.ranks import Ranks
from services.trainer.learner.process import LearnerProcess
from services.trainer.loop.orchestrator import Orchestrator
from services.trainer.loop.parts import Parts
from services.trainer.runs.runs import RunRequest, Runs
from services.trainer.runs.store import RunStore
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
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.config import Settings
from triforge.environments import registry
from triforge.event_loop import together
from triforge.rollout.protocols import Generate
from triforge.sandbox.client import shared
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database
from triforge.store.images import ImageStore
from triforge.store.step_records import read_step_records
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    GroupTask,
    JudgeTask,
    PoolRequest,
    PoolState,
    RunState,
    RunStep,
    TaskOutcome,
)

_ENDED = ("finished", "failed", "stopped")


class ModelsByRole:
    """The engines of several models: a request goes to its `model`, without one to that of `role`."""

    def __init__(self, models: Mapping[str, LocalModel], role: str) -> None:
        self._models, self._role = models, role

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample."""
        return await self._models[request.model or self._role](request)

    async def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Sample for many prompts; one reply a request, in order."""
        names = [request.model or self._role for request in requests]
        places = {name: [i for i, n in enumerate(names) if n == name] for name in names}
        parts = await together(
            self._models[name].many([requests[i] for i in own]) for name, own in places.items()
        )
        replies = dict(zip(chain(*places.values()), chain(*parts), strict=True))
        return [replies[i] for i in range(len(requests))]


class OneProcess:
    """A deployment; use it as an async context manager.

    Args:
        folder: for its database and artifacts.
        models: the initial folder of each model, by name (`policy`, `reward`, `rewriter`, ...).
        document: TOML document that runs start from.
        rewriter: rewrites tasks in the place of a model `rewriter`.
        rows: samples that an engine decodes side by side.
        concurrency: episodes in flight.
    """

    def __init__(
        self,
        folder: Path,
        models: Mapping[str, Path],
        *,
        document: Path | None = None,
        rewriter: Generate | None = None,
        rows: int = 64,
        concurrency: int = 64,
    ) -> None:
        self._folders, self._concurrency = models, concurrency
        self._rewriter, self._rows = rewriter, rows
        further = models.keys() - {"policy", "reward", "rewriter"}
        self.settings = Settings(
            models=",".join(f"{name}=http://{name}.invalid" for name in sorted(further)),
            database_url=f"sqlite:///{folder / 'store.sqlite'}",
            artifacts_url=str(folder / "artifacts"),
            config=str(document or ""),
        )
        self.artifacts = ArtifactStore(self.settings.artifacts_url)
        self._database = open_database(self.settings.database_url)
        self._database.upgrade()
        self.store = RunStore(self._database)
        self.tasks = PoolStore(self._database)
        self._adapting = 0  # outcomes that are being counted

    async def __aenter__(self) -> Self:
        self.models = {
            role: LocalModel(path, role=role, rows=self._rows)
            for role, path in self._folders.items()
        }
        self.broker = MemoryBroker()
        self._serve_pools()
        self._serve_queues()
        trained = [role for role in self.models if role != "rewriter"]
        parts = Parts(
            store=self.store,
            broker=self.broker,
            artifacts=self.artifacts,
            env_adapter=self.pools,
            apis={role: self.models[role] for role in trained},
            settings=self.settings,
        )
        self._runs = Runs(
            store=self.store,
            pools=self.pools,
            broker=self.broker,
            artifacts=self.artifacts,
            settings=self.settings,
            apis=parts.apis,
        )
        learners = [
            LearnerProcess(self.broker, self.artifacts, role, self._trainer()).run()
            for role in trained
        ]
        work = [*learners, Orchestrator(parts, idle_s=0.05).run_forever(), self._adapt.watch()]
        self._tasks = [asyncio.create_task(one) for one in work]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.broker.close()
        await self.pools.close()
        for model in self.models.values():
            model.stop()
        self._database.close()

    def _trainer(self) -> BatchTrainer:
        return BatchTrainer(self.artifacts, Ranks(torch.device("cpu")))

    def _serve_pools(self) -> None:
        parts = PoolParts(
            database=self._database, family=registry.family, log=SessionLog(self.broker)
        )
        transport = httpx.ASGITransport(app=create_app(parts=parts))
        self.pools = EnvAdapterClient(self.settings.env_adapter_url, transport=transport)

    def _serve_queues(self) -> None:
        keep, policy = ImageStore(self.artifacts).put, ModelsByRole(self.models, "policy")
        rollouts = RolloutWorker(
            broker=self.broker,
            generate=policy,
            read_task=self.tasks.task,
            family=registry.family,
            keep=keep,
            artifacts=self.artifacts,
            concurrency=self._concurrency,
        )
        judge = JudgeWorker(
            broker=self.broker,
            generate_many=ModelsByRole(self.models, "reward").generate_many,
            sandbox=shared(),
        )
        rewriter = self._rewriter or self.models.get("rewriter")
        adapter = make_adapter(self._database, registry.family, rewriter)
        self._adapt = AdaptWorker(
            broker=self.broker, adapter=adapter, settings=RunSettings(self._database).read
        )
        self.broker.serve(ROLLOUT_QUEUE, Job(ROLLOUT_TASK, GroupTask, rollouts.play))
        self.broker.serve(JUDGE_QUEUE, Job(JUDGE_TASK, JudgeTask, judge.judge))
        # one at a time, in order: the same run gives the same tasks
        self.broker.serve(
            ADAPT_QUEUE, Job(ADAPT_TASK, TaskOutcome, self._adapt_tasks), concurrency=1
        )

    async def _adapt_tasks(self, outcome: TaskOutcome) -> None:
        self._adapting += 1
        try:
            await self._adapt.handle(outcome)
        finally:
            self._adapting -= 1

    async def adapted(self) -> None:
        """Wait until adaptation has counted all outcomes that were submitted."""
        idle = False
        while not idle:
            await asyncio.sleep(0.01)
            idle = not (await self.broker.depth(ADAPT_QUEUE) or self._adapting)

    async def create_pool(self, pool: PoolRequest) -> PoolState:
        """Make a pool, as `POST /v1/pools` does."""
        return await self.pools.create_pool(pool)

    async def train(self, pool: str, config: Mapping[str, Any], *, name: str = "run") -> RunState:
        """Submit a run and wait until it has ended."""
        models = {role: {"path": str(path)} for role, path in self._folders.items()}
        given = dict(config.get("models", {}))
        merged = {role: {**given.get(role, {}), **path} for role, path in models.items()}
        document = {**config, "models": {**given, **merged}}
        request = RunRequest(pool=pool, name=name, config=document)
        run = await self._runs.submit(request, None)
        while run.status not in _ENDED:
            await asyncio.sleep(0.05)
            run = await asyncio.to_thread(self.store.get, run.id)
        return run

    def steps(self, run_id: str) -> list[RunStep]:
        """Return the committed steps of a run."""
        return self.store.steps(run_id)

    def records(self, run_id: str) -> list[dict[str, Any]]:
        """Return the records of all training steps of a run, a row a response."""
        files = [step.artifacts.get("step_record") for step in self.steps(run_id)]
        rows = [read_step_records(self.artifacts, name) for name in files if name]
        return [row for part in rows for row in part]
