"""No trained token is staler than the bound and no group is trained on twice, in any order and after any crash.

The window, the collector, its groups in flight and the task source are the real ones. Around them stands a world in memory: workers that
start and finish groups in any order while weights change under them, a learner that publishes each version once, and a
database that keeps what was committed. The orchestrator dies at any of its calls, once or again and again.
"""

from __future__ import annotations

import asyncio
import copy
import random
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.loop.collector import Collector
from services.trainer.loop.in_flight import InFlight
from services.trainer.loop.task_source import TaskSource
from tests.unit.trainer.played import group_task, judged
from triforge.config import parse
from triforge.types import GroupTask, JudgedGroup, PlannedGroup, PlanRequest, VersionSpan

STEPS, BASE = 5, 3


class Died(BaseException):
    """The orchestrator's process ended here."""


class World:
    """Everything that outlives an orchestrator; also the wire, the store and the plans it talks to."""

    def __init__(self, draw: random.Random, deaths: float) -> None:
        self._draw, self._deaths = draw, deaths
        self.live = BASE
        self.step = 0
        self.notes: dict[str, Any] = {}
        self.published: dict[int, list[str]] = {}  # groups by the step that trained on them
        self.queued: dict[str, GroupTask] = {}
        self.started: dict[str, int] = {}  # the version that sampled a group's first token
        self.done: dict[str, JudgedGroup] = {}
        self.stream: list[str] = []
        self._paces: dict[str, float] = {}  # chance that a started group is done with a call
        self.sizes = [draw.randint(0, 3) for _ in range(STEPS + 1)]

    def visit(self) -> None:
        """A call of the orchestrator: time passes, and it may be the last one."""
        if self._draw.random() < self._deaths:
            raise Died
        for name, task in list(self.queued.items()):
            pace = self._paces.setdefault(name, self._draw.choice((0.003, 0.05, 0.5)))
            chance = self._draw.random()
            if name not in self.started and chance < 0.5:
                self.started[name] = self.live
            elif name in self.started and chance < pace:
                del self.queued[name]
                self._finish(task, self.started.pop(name))

    def _finish(self, task: GroupTask, first: int) -> None:
        played = judged(
            group_task(task.group_id, votes=0), [1, -1], [[[]], [[]]], version=first, length=2
        )
        crossed = []
        for trajectory in played.played.trajectories:
            spans = (
                VersionSpan(version=first, start=2, end=3),
                VersionSpan(version=self.live, start=3, end=4),
            )
            segment = trajectory.segments[0].model_copy(update={"versions": spans})
            crossed.append(trajectory.model_copy(update={"segments": (segment,)}))
        group = played.played.model_copy(update={"trajectories": tuple(crossed)})
        self.done[task.group_id] = JudgedGroup(played=group, votes=(None, None))
        self.stream.append(task.group_id)

    # ---- the store and the plans ----

    def note(self, run_id: str, name: str, value: Any) -> None:
        self.visit()
        self.notes = {**self.notes, name: copy.deepcopy(value)}
        self.visit()

    async def plan(self, pool_id: str, wanted: PlanRequest) -> list[PlannedGroup]:
        self.visit()
        return [
            PlannedGroup(task_id=f"t{n}", slot=f"t{n}", purpose="train")
            for n in range(self.sizes[wanted.step])
        ]

    async def emit_group(self, *_: Any) -> None:
        self.visit()

    # ---- the wire ----

    async def last_id(self, _: str) -> str:
        return str(len(self.stream))

    async def send(self, task: GroupTask) -> None:
        self.visit()
        if task.group_id not in self.done:
            self.queued.setdefault(task.group_id, task)

    async def is_held(self, *names: str) -> bool:
        return names[0] in self.queued

    async def judged_group(self, name: str) -> JudgedGroup | None:
        self.visit()
        return self.done.get(name)

    async def read_judged(self, after: str, *, block_s: float) -> list[tuple[str, str]]:
        self.visit()
        await asyncio.sleep(0)
        return [(str(n + 1), self.stream[n]) for n in range(int(after), len(self.stream))]

    async def forget_group(self, name: str, _: tuple[str, ...]) -> None:
        self.done.pop(name, None)

    # ---- the orchestrator's loop, as far as it concerns what is in flight ----

    async def conduct(self, config: Any) -> None:
        """Take the run up where it is committed, and bring it to its end or to its death."""

        async def check() -> None:
            self.visit()

        parts: Any = SimpleNamespace(store=self, broker=self, env_adapter=self)
        newest: dict[Any, int] = {}
        in_flight = InFlight(
            parts.broker,
            resend_s=1e9,
            lease_s=1e9,
            check=check,
            newest=newest,
            sweep_s=1e9,
            arrived=self.emit_group,
        )
        run: Any = SimpleNamespace(id="run", pool_id="pool")
        notes, env = copy.deepcopy(self.notes), TaskSource(parts, run, config)
        collector = Collector(parts, in_flight, run, config, notes, env.plan)
        for step in range(self.step + 1, STEPS + 1):
            newest |= {"policy": max(BASE + step - 1, self.live), "reward": self.live}
            await collector.resume({"policy": BASE + step - 1, "reward": 0}, step - 1)
            groups = await collector.collect(await env.plan(collector.window.open_rounds()))
            names = [group.played.group.group_id for group in groups]
            async with in_flight.receiving():
                await self._train(step, names, groups, config)
            newest["policy"] = BASE + step
            collector.advance({"policy": BASE + step, "reward": 0})
            self.visit()
            self.step, self.notes = step, copy.deepcopy(notes)
            self.visit()
            for name in names:
                await self.forget_group(name, ())

    async def _train(
        self, step: int, names: list[str], groups: list[JudgedGroup], config: Any
    ) -> None:
        for _ in range(self._draw.randint(0, 20)):
            self.visit()
            await asyncio.sleep(0)
        if step not in self.published:
            self.published[step] = names
            sampled = {
                span.version
                for group in groups
                for trajectory in group.played.trajectories
                for span in trajectory.segments[0].versions
            }
            learner = BASE + step - 1
            assert max(sampled, default=learner) <= learner
            if config.run.late_groups == "wait":
                assert min(sampled, default=learner) >= learner - config.run.staleness_bound
        assert self.published[step] == names, "another batch than before the death"
        self.live = BASE + step
        self.visit()


@settings(max_examples=40)
@given(
    st.integers(0, 3),
    st.sampled_from(["wait", "wait", "mask"]),
    st.sampled_from([0.0, 0.01, 0.05]),
    st.integers(0, 10**9),
)
def test_no_token_over_the_bound_and_no_group_twice_after_any_crash(
    bound: int, late: str, deaths: float, seed: int
) -> None:
    config = parse(
        {
            "run": {"steps": STEPS, "staleness_bound": bound, "late_groups": late},
            "env_adapter": {"rollouts": 2},
            "adaptation": {"controller": "none"},
            "algorithm": {"preset": "grpo"},
        }
    )
    world = World(random.Random(seed), deaths)
    while world.step < STEPS:
        try:
            asyncio.run(world.conduct(config))
        except Died:
            continue
    trained = [name for names in world.published.values() for name in names]
    assert len(trained) == len(set(trained)) == sum(world.sizes[1:])
    assert [len(world.published[step]) for step in range(1, STEPS + 1)] == world.sizes[1:]
