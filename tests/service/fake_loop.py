"""The orchestrator's surroundings as small fakes on a real Valkey: workers, learners, policy services, plans.

Every policy version plays each group the same way: rollout 0 wins, the others lose, two steps each; the judge approves
of the first step of every rollout and of nothing else. So every training step has rows for both learners.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import redis.asyncio as aioredis
from redis.exceptions import RedisError

from services.trainer.loop.orchestrator import Orchestrator
from services.trainer.loop.parts import Parts
from tests.service.fragile import FragileArtifacts, FragileBroker, FragileStore, Killed, Troubles
from tests.unit.trainer.played import in_turns, judged, labelled, scored
from triforge.broker import ADAPT_QUEUE, ROLLOUT_QUEUE, Broker
from triforge.config import Settings, parse
from triforge.errors import ConflictError, UnavailableError, WeightsError
from triforge.event_loop import end_task
from triforge.retry import RetryPolicy
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database
from triforge.store.manifests import write_manifest
from triforge.types import (
    ErrorInfo,
    GroupTask,
    JudgedGroup,
    PlannedGroup,
    PlanRequest,
    Purpose,
    RunState,
    TaskOutcome,
    TrainBatch,
    TrainedRole,
    WeightsReady,
    WeightsState,
    WeightsUpdate,
)

PAIR: tuple[Purpose, Purpose] = ("measure_parent", "measure_candidate")
NEVER = 1_000_000
ROLES: tuple[TrainedRole, ...] = ("policy", "reward")
CONFIG: dict[str, Any] = {
    "run": {"steps": 2, "groups_per_step": 2, "eval_every": 2, "eval_tasks": 1},
    "models": {"policy": {"path": "/models/policy"}, "reward": {"path": "/models/reward"}},
    "env_adapter": {"rollouts": 2},
    "reward": {"votes": 1},
    "algorithm": {"overrides": {"reward_band": "none"}},
}


class FakePlans:
    """env_adapter: the same plan for the same step. Pairs of a proposal stand first when `proposal` is set."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self.proposal: str | None = None
        self.heldout = True
        self.sizes: dict[int, int] = {}  # groups of a round, where a small pool has fewer
        self.refills = 100  # groups of a refill, where a pool has no more
        self.before: Callable[[int], None] = lambda _: None  # gets the step of a train plan

    async def plan(self, pool_id: str, wanted: PlanRequest) -> list[PlannedGroup]:
        self._troubles.meet(f"plan {wanted.kind}")
        step, groups = wanted.step, wanted.groups
        if wanted.kind == "evaluate":
            names = range(groups if self.heldout else 0)
            return [PlannedGroup(task_id=f"h{n}", slot=f"h{n}", purpose="evaluate") for n in names]
        self.before(step)
        groups = min(groups, self.sizes.get(step, groups))
        if wanted.refill:
            step, groups = step + 1000 * wanted.refill, min(groups, self.refills)
        found = [
            PlannedGroup(task_id=f"t{step}-{n}", slot=f"t{n}", purpose="train")
            for n in range(groups)
        ]
        if self.proposal and wanted.max_pending:
            pair = [
                PlannedGroup(
                    task_id=f"p-{purpose}", slot="p", purpose=purpose, proposal_id=self.proposal
                )
                for purpose in PAIR
            ]
            found = pair + (found if wanted.pairs_on_top else found[2:])
        return found


class FakeService:
    """A policy service whose active version is the last update; versions only go up, like the real one's."""

    def __init__(self, role: TrainedRole, troubles: Troubles) -> None:
        self.role, self._troubles = role, troubles
        self.version, self.uri = 0, f"/models/{role}"
        self.served: list[tuple[int, str]] = []
        self.lost: set[str] = set()  # folders that were deleted
        self.released = False
        self.memory: list[
            tuple[str, int]
        ] = []  # what was asked, and the version that was served then

    def restart(self) -> None:
        """The engines came up again, with the folder they start from."""
        self.version, self.uri = 0, f"/models/{self.role}"

    async def weights(self) -> WeightsState:
        self._troubles.meet(f"weights of {self.role}")
        return WeightsState(role=self.role, version=self.version, uri=self.uri, engines=1, ready=1)

    async def update_weights(self, update: WeightsUpdate) -> WeightsState:
        self._troubles.meet(f"serve {self.role}")
        if update.version <= self.version and (update.version, update.uri) != (
            self.version,
            self.uri,
        ):
            raise ConflictError(
                f"weights: given version {update.version}, but {self.version} serves"
            )
        if update.uri in self.lost:
            raise WeightsError(f"weights {update.uri}: expected a model folder with config.json")
        self.version, self.uri, self.released = update.version, update.uri, False
        self.served.append((update.version, update.uri))
        self._troubles.meet(f"served {self.role}")
        return await self.weights()

    async def release_memory(self) -> WeightsState:
        self.released = True
        self.memory.append(("release", self.version))
        self._troubles.meet(f"released {self.role}")
        return await self.weights()

    async def resume_memory(self) -> WeightsState:
        self.memory += [("resume", self.version)] if self.released else []
        self.released = False
        return await self.weights()


class FakeLearner:
    """Publishes each version once: a batch whose version is out already is only announced again.

    Attributes:
        trained: how often each (run, role, version) was trained on.
    """

    def __init__(self, broker: Broker, artifacts: ArtifactStore, role: TrainedRole) -> None:
        self._broker, self._artifacts, self.role = broker, artifacts, role
        self.trained: Counter[tuple[str, TrainedRole, int]] = Counter()
        self.batches: list[TrainBatch] = []
        self.published: dict[tuple[str, int], WeightsReady] = {}
        self.error: ErrorInfo | None = None
        self.writes = False  # folders with manifests, as rollbacks need them
        self.silent = False  # trains, and dies before it says so
        self.before: Callable[[], Awaitable[None]] | None = None  # awaited before each step

    async def serve(self) -> None:
        cursor = "0"
        while True:
            with contextlib.suppress(UnavailableError):  # a machine that stood still: it asks again
                cursor = await self._read(cursor)

    async def _read(self, cursor: str) -> str:
        """Answer the batches after `cursor`; one that could not be announced is read again."""
        for entry, batch, _ in await self._broker.read_batches(self.role, cursor, block_s=0.2):
            if self.before is not None:
                await self.before()
            ready = self._answer(batch)
            if not self.silent:
                await self._broker.announce(ready)
            cursor = entry
        return cursor

    def _answer(self, batch: TrainBatch) -> WeightsReady:
        self.batches.append(batch)
        if self.error is not None:
            return self._ready(batch, batch.version, error=self.error)
        target = (batch.run_id, batch.version + 1)
        if target not in self.published:
            assert self._artifacts.exists(batch.uri)
            self.trained[batch.run_id, batch.role, batch.version] += 1
            self.published[target] = self._ready(batch, batch.version + 1)
            if self.writes:
                self._write(f"{batch.run_id}/{batch.role}/v{batch.version + 1:06d}")
        return self.published[target]

    def _write(self, name: str) -> None:
        for kind in ("weights", "checkpoints"):
            folder = self._artifacts.local_path(f"{kind}/{name}")
            folder.mkdir(parents=True)
            (folder / "data.bin").write_bytes(name.encode())
            write_manifest(folder, {"version": int(name[-6:])})

    def _ready(
        self, batch: TrainBatch, version: int, error: ErrorInfo | None = None
    ) -> WeightsReady:
        metrics = {"loss": 0.5, "broken": float("nan")}
        name = f"weights/{batch.run_id}/{batch.role}/v{version:06d}"
        return WeightsReady(
            run_id=batch.run_id, role=batch.role, step=batch.step, version=version, error=error,
            uri=self._artifacts.uri(name), digest=f"digest {version}", metrics=metrics,
        )  # fmt: skip


class FakeWorkers:
    """Rollout and judge workers in one: a job becomes a judged and announced group.

    Attributes:
        jobs: every rollout job as it came, duplicates included.
        played: how often each group was really played.
    """

    def __init__(
        self, broker: Broker, redis_url: str, services: dict[TrainedRole, FakeService]
    ) -> None:
        self._broker, self._services = broker, services
        self._redis: Any = aioredis.from_url(redis_url, decode_responses=True)
        self.jobs: list[GroupTask] = []
        self.played: Counter[str] = Counter()
        self.loses: Callable[[GroupTask], bool] = lambda _: False  # a job that vanishes
        self.silent: Callable[[GroupTask], bool] = lambda _: False  # an announcement that vanishes
        self.delays: Callable[[GroupTask], bool] = lambda _: (
            False
        )  # played at once, done at `release`
        self.scores: Sequence[float] = ()  # of the rollouts of every group, without a threshold
        self.alike: Callable[[GroupTask], bool] = lambda _: False  # all rollouts lose
        self.labels: Sequence[int] = ()  # of the steps of every rollout
        self.shuffled = False  # jobs are taken in an order of its own
        self._held: dict[str, JudgedGroup] = {}
        self._busy = False

    async def idle(self, troubles: Troubles) -> None:
        """Wait until every job that the orchestrator has sent is done."""
        while self._busy or len(self.jobs) < troubles.visited.count("send rollout"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def release(self) -> None:
        """Finish what was delayed, as it was played then."""
        self.delays = lambda _: False
        while self._held:
            name, group = self._held.popitem()
            await self._put(group)
            await self._broker.announce_if_complete(name)

    async def serve(self) -> None:
        try:
            while True:
                newest = self.shuffled and random.random() < 0.5
                pop = self._redis.blpop if newest else self._redis.brpop
                # a machine that stood still: a job that was lost by it is sent again
                with contextlib.suppress(RedisError, UnavailableError):
                    found = await pop([ROLLOUT_QUEUE], timeout=0.2)
                    if found is not None:
                        self._busy = True
                        await self._play(_message(found[1], GroupTask))
                self._busy = False
        finally:
            await self._redis.aclose()

    async def _play(self, task: GroupTask) -> None:
        self.jobs.append(task)
        if self.loses(task):
            return
        if self.delays(task):
            self._held.setdefault(task.group_id, self._judged(task))
            return
        async with self._broker.lease(task.group_id) as held:
            if held and await self._broker.group(task.group_id) is None:
                await self._put(self._judged(task))
            elif held:
                await self._vote(self._judged(task))
        if not self.silent(task):
            await self._broker.announce_if_complete(task.group_id)

    def _judged(self, task: GroupTask) -> JudgedGroup:
        found = judged(
            task,
            [-1 if self.alike(task) else 1] + [-1] * (task.rollouts - 1),
            [[[1] * task.votes, [-1] * task.votes] for _ in range(task.rollouts)],
            version=self._services["policy"].version,
            judge_version=self._services["reward"].version,
        )
        if self.labels:
            found = labelled(found, self.labels)
        if task.agents:
            found = in_turns(found, {r: service.version for r, service in self._services.items()})
        return scored(found, self.scores[: task.rollouts], known=False) if self.scores else found

    async def _put(self, group: JudgedGroup) -> None:
        self.played[group.played.group.group_id] += 1
        for trajectory in group.played.trajectories:
            await self._broker.put_payload(trajectory)
        await self._broker.put_payload(group.played)
        await self._vote(group)

    async def _vote(self, group: JudgedGroup) -> None:
        """Vote where no votes are."""
        for votes in group.votes if group.played.group.votes else ():
            assert votes is not None
            await self._broker.put_payload(votes)


def _message(text: str, kind: Any) -> Any:
    [[payload], _, _] = json.loads(base64.b64decode(json.loads(text)["body"]))
    return kind.model_validate_json(payload)


class Loop:
    """Everything around an orchestrator, and as many orchestrators one after another as a test wants to kill."""

    def __init__(
        self, broker: Broker, redis_url: str, folder: Path, further: Sequence[TrainedRole] = ()
    ) -> None:
        self.broker, self._redis_url = broker, redis_url
        self.roles, self.config = (*ROLES, *further), CONFIG
        self.troubles = Troubles()
        self.database = open_database(f"sqlite:///{folder / 'triforge.sqlite'}")
        self.store = FragileStore(self.database, self.troubles)
        self.artifacts = FragileArtifacts(str(folder / "artifacts"), self.troubles)
        self._own_wire = FragileBroker(redis_url, self.troubles)
        self.services = {role: FakeService(role, self.troubles) for role in self.roles}
        self.learners = {r: FakeLearner(broker, self.artifacts, r) for r in self.roles}
        self.plans = FakePlans(self.troubles)
        self.workers = FakeWorkers(broker, redis_url, self.services)
        urls = ",".join(f"{role}=http://{role}:1" for role in further)
        self.settings = Settings(lease_s=0.6, resend_s=1.0, models=urls)
        self._tasks: list[asyncio.Task[None]] = []

    def orchestrator(self) -> Orchestrator:
        """A fresh orchestrator, as after a restart of its process."""
        apis = {role: self.services[role] for role in self.settings.trained}
        parts = Parts(
            store=self.store, broker=self._own_wire, artifacts=self.artifacts, env_adapter=self.plans,
            apis=apis, settings=self.settings,
        )  # fmt: skip
        return Orchestrator(
            parts, idle_s=0.01, retry=RetryPolicy(first_s=0.02, retry_on=lambda _: True)
        )

    def submit(self, **run: Any) -> RunState:
        """Queue a run of `config`, with fields of its section `run` changed."""
        return self.submit_with({"run": self.config["run"] | run})

    def submit_with(self, changes: dict[str, Any]) -> RunState:
        """Queue a run of `config`, with these sections in place of its own."""
        config = parse(self.config | changes).model_dump(mode="json")
        return self.store.create(name="run", pool_id="pool", config=config)

    async def conduct(self, run: RunState) -> RunState:
        """One orchestrator takes the run up, again where Redis was away, as in `run_forever`; returns how it left it."""
        orchestrator = self.orchestrator()
        while True:
            with contextlib.suppress(UnavailableError):
                await orchestrator.work_on(self.store.get(run.id))
                return self.store.get(run.id)

    async def killed(self, run: RunState, place: int) -> bool:
        """Let an orchestrator take the run up and die at its `place`-th place; False if it came to the end before."""
        self.troubles.kill_at(place)
        try:
            await self.conduct(run)
        except Killed:
            return True
        finally:
            self.troubles.kill_at(NEVER)
        return False

    def start(self) -> None:
        """Start workers and learners."""
        work = [self.workers.serve(), *(learner.serve() for learner in self.learners.values())]
        self._tasks = [asyncio.create_task(part) for part in work]

    async def stop(self) -> None:
        """Stop them; an error of theirs is the test's."""
        for task in self._tasks:
            await end_task(task)
        ended, self._tasks = self._tasks, []
        for task in ended:
            if not task.cancelled():
                task.result()

    async def close(self) -> None:
        try:
            await self.stop()
        finally:
            await self._own_wire.close()
            self.database.close()

    # ---- what happened ----

    def trained(self) -> Counter[tuple[str, TrainedRole, int]]:
        return sum((learner.trained for learner in self.learners.values()), Counter())

    async def adapted(self) -> list[TaskOutcome]:
        """The outcomes that were sent, oldest first."""
        client: Any = aioredis.from_url(self._redis_url, decode_responses=True)
        try:
            raw = await client.lrange(ADAPT_QUEUE, 0, -1)
        finally:
            await client.aclose()
        return [_message(text, TaskOutcome) for text in reversed(raw)]

    async def keys(self) -> set[str]:
        """Payloads that lie in Redis."""
        client: Any = aioredis.from_url(self._redis_url, decode_responses=True)
        try:
            names = await client.keys("tf:*")
        finally:
            await client.aclose()
        kinds = ("tf:group:", "tf:votes:", "tf:trajectory:", "tf:announced:", "tf:started:")
        payloads = {name for name in names if name.startswith(kinds)}
        return {name for name in payloads if not name.startswith("tf:started:orchestrator:")}

    def records(self, run: RunState) -> list[dict[str, Any]]:
        """The record of every committed training step, without what differs from run to run: ids and base versions."""
        base, judges = self.store.run_state(run.id)["base"], parse(run.config).models.judges
        rows = []
        for step in self.store.steps(run.id):
            if "step_record" in step.artifacts:
                data = self.artifacts.read(step.artifacts["step_record"])
                text = json.dumps(pq.read_table(io.BytesIO(data)).to_pylist())
                rows += json.loads(text.replace(run.id, "run"))
        for row in rows:
            row["policy_versions"] = [v - base[row["model"]] for v in row["policy_versions"]]
            judge = judges.get(row["agent_id"], "reward")
            for vote in row["votes"]:
                vote["versions"] = [v - base[judge] for v in vote["versions"]]
        return rows


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other tasks bring about; there is no event to wait for."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def loop_of(
    broker: Broker, redis_url: str, folder: Path, further: Sequence[TrainedRole] = ()
) -> AsyncIterator[Loop]:
    """A loop whose workers and learners run while the block does, with models in addition to policy and reward model."""
    loop = Loop(broker, redis_url, folder, further)
    loop.start()
    try:
        yield loop
    finally:
        await loop.close()
