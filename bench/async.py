"""Asynchronous training: judged groups an hour at staleness bounds 0, 1 and 2.

The orchestrator, its window, its step records and its database are the real ones. Workers, engines and learners are stand-ins that
take the time they would take, on a clock that jumps from one event to the next. Episodes last lognormal times, half of
them less than 2 s and one in a hundred more than 30 s; training takes a quarter of the synchronous step. All bounds play
episodes of the same lengths.

`wait` holds a step back for groups that would become too old; `mask` goes on and leaves out the responses over the bound.
Staleness is read where a learner reads it: from the versions of the tokens with weight in the rows that it is given.

Run: python -m bench.async [--steps N]
"""

# ruff: noqa: ARG002 - stand-ins, documented where the real ones are
from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from bench.machine import keep, machine
from bench.virtual_time import run
from services.trainer.loop.orchestrator import Orchestrator
from services.trainer.loop.parts import Parts
from services.trainer.runs.store import RunStore
from triforge.broker import GroupStatus, MemoryBroker, Queued
from triforge.config import Settings, parse
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database
from triforge.store.rows import read_rows
from triforge.types import (
    GroupTask,
    JudgedGroup,
    Outcome,
    PlannedGroup,
    PlanRequest,
    RunStep,
    Segment,
    Step,
    StepVotes,
    Task,
    TrainBatch,
    TrainedRole,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
    VersionSpan,
    Vote,
    WeightsReady,
    WeightsState,
    WeightsUpdate,
)

MEDIAN_S, P99_S = 2.0, 30.0
SPREAD = math.log(P99_S / MEDIAN_S) / 2.3263  # the 99th percentile of a normal variable
GROUPS, ROLLOUTS, TURNS = 16, 8, 6
JUDGE_S = 0.2  # votes on one episode, cast as soon as it ends
TARGET, WANTED_AT = 2.5, 2  # judged groups an hour over those of the synchronous run, at this bound


def seconds_of(task: GroupTask, rollout: int) -> float:
    """How long an episode lasts; the same whatever the bound is."""
    draw = random.Random(f"{task.group_id.partition('-')[2].partition('-')[2]}/{rollout}")
    return MEDIAN_S * math.exp(SPREAD * draw.gauss(0.0, 1.0))


class Service:
    """A policy service that takes new weights at once; requests run on."""

    def __init__(self, role: TrainedRole) -> None:
        self.role, self.version, self.uri = role, 0, f"/models/{role}"

    async def weights(self) -> WeightsState:
        return WeightsState(role=self.role, version=self.version, uri=self.uri, engines=1, ready=1)

    async def update_weights(self, update: WeightsUpdate) -> WeightsState:
        self.version, self.uri = update.version, update.uri
        return await self.weights()


class Plans:
    """Always other tasks."""

    async def plan(self, pool_id: str, wanted: PlanRequest) -> list[PlannedGroup]:
        names = [f"t{wanted.step}-{n}" for n in range(wanted.groups)]
        return [PlannedGroup(task_id=name, slot=name, purpose="train") for name in names]


class Everything(MemoryBroker):
    """The queues and what stands behind them: workers that play and judge, learners that train."""

    def __init__(
        self, services: dict[TrainedRole, Service], train_s: float, artifacts: ArtifactStore
    ) -> None:
        super().__init__()
        self._services, self._train_s, self._artifacts = services, train_s, artifacts
        self.lags: Counter[int] = Counter()  # trained tokens of both models by staleness
        self._done: dict[str, JudgedGroup] = {}
        self._unjudged: dict[str, TrajectoryGroup] = {}
        self._judged: list[str] = []
        self._ready: list[WeightsReady] = []
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- workers ----

    async def send(self, task: Queued) -> None:
        assert isinstance(task, GroupTask)
        played = self._unjudged.pop(task.group_id, None)
        self._start(self._play(task) if played is None else self._judge_again(played))

    async def forget_votes(self, group_id: str, trajectory_ids: tuple[str, ...]) -> None:
        self._unjudged[group_id] = self._done.pop(group_id).played

    async def _judge_again(self, played: TrajectoryGroup) -> None:
        votes = await asyncio.gather(*(self._judge(t.id, t.group_id) for t in played.trajectories))
        self._finish(JudgedGroup(played=played, votes=tuple(votes)))

    def _finish(self, group: JudgedGroup) -> None:
        self._done[group.played.group.group_id] = group
        self._judged.append(group.played.group.group_id)
        self._news.set()

    async def _play(self, task: GroupTask) -> None:
        played = await asyncio.gather(*(self._episode(task, k) for k in range(task.rollouts)))
        given = Task(
            id=task.task_id, pool_id="pool", slot=task.task_id, family="x", instruction="win"
        )
        group = TrajectoryGroup(group=task, task=given, trajectories=tuple(t for t, _ in played))
        self._finish(JudgedGroup(played=group, votes=tuple(v for _, v in played)))

    async def _episode(self, task: GroupTask, rollout: int) -> tuple[Trajectory, TrajectoryVotes]:
        """Play an episode: each turn samples one token with the weights of its moment."""
        ids: list[int] = []
        spans, steps = [], []
        pause = seconds_of(task, rollout) / TURNS
        for turn in range(TURNS):
            place = len(ids) + 1
            ids += [7, 8]
            version = self._services["policy"].version
            spans.append(VersionSpan(version=version, start=place, end=place + 1))
            steps.append(
                Step(
                    index=turn, observation="", response="", action="", next_observation="",
                    start=place, end=place + 1,
                )
            )  # fmt: skip
            await asyncio.sleep(pause)
        name = f"{task.group_id}-{rollout:02d}"
        trajectory = Trajectory(
            id=name, group_id=task.group_id, index=rollout, task_id=task.task_id, task_version=0,
            instruction="win", steps=tuple(steps), outcome=Outcome(value=1 if rollout % 2 else -1),
            segments=(Segment(ids=tuple(ids), logprobs=(-0.5,) * len(ids), versions=tuple(spans)),),
        )  # fmt: skip
        return trajectory, await self._judge(name, task.group_id)

    async def _judge(self, name: str, group_id: str) -> TrajectoryVotes:
        """One vote of one token a turn."""
        span = (VersionSpan(version=self._services["reward"].version, start=0, end=1),)
        await asyncio.sleep(JUDGE_S)
        votes = tuple(
            StepVotes(
                step=i, prompt_ids=(1,),
                votes=(Vote(value=1 if i % 2 else -1, text="", ids=(2,), logprobs=(-0.5,), versions=span),),
            )
            for i in range(TURNS)
        )  # fmt: skip
        return TrajectoryVotes(trajectory_id=name, group_id=group_id, steps=votes)

    async def judged_group(self, group_id: str) -> JudgedGroup | None:
        return self._done.get(group_id)

    async def forget_group(self, group_id: str, trajectory_ids: tuple[str, ...]) -> None:
        self._done.pop(group_id, None)

    async def retire_group(self, group_id: str, trajectory_ids: tuple[str, ...]) -> None:
        self._done.pop(group_id, None)

    @contextlib.asynccontextmanager
    async def lease(self, job_id: str) -> AsyncIterator[bool]:
        yield True

    async def is_held(self, *job_ids: str) -> bool:
        return False

    async def announced(self, group_ids: Sequence[str]) -> set[str]:
        return self._done.keys() & set(group_ids)

    async def status(self, groups: Sequence[tuple[str, Sequence[str]]]) -> list[GroupStatus]:
        everybody_works = [frozenset({name}) for name, _ in groups]
        return [
            GroupStatus(held=name, begun=name, judged=frozenset(), played=False)
            for name in everybody_works
        ]

    async def depth(self, queue: str) -> int:
        return 1  # nothing is ever lost here

    # ---- learners ----

    async def announce(self, batch: TrainBatch | WeightsReady) -> None:
        assert isinstance(batch, TrainBatch)
        self._start(self._train(batch))

    async def _train(self, batch: TrainBatch) -> None:
        for row in read_rows(self._artifacts, batch.uri):
            for version, weight in zip(row.versions, row.weights, strict=True):
                self.lags[batch.version - version] += weight > 0
        await asyncio.sleep(self._train_s)
        version = batch.version + 1
        ready = WeightsReady(
            run_id=batch.run_id, role=batch.role, step=batch.step, version=version,
            uri=f"/weights/{batch.run_id}/{batch.role}/{version}", digest="",
        )  # fmt: skip
        self._ready.append(ready)
        self._news.set()

    # ---- streams: an entry's id is its number ----

    async def last_id(self, stream: str) -> str:
        return str(len(self._judged) if stream.endswith("judged") else len(self._ready))

    async def _wait(self, entries: list[Any], after: str, block_s: float) -> int:
        if len(entries) <= int(after):
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(block_s):
                    await self._news.wait()
        return int(after)

    async def read_judged(self, after: str, *, block_s: float = 1.0) -> list[tuple[str, str]]:
        at = await self._wait(self._judged, after, block_s)
        return [(str(at + n + 1), name) for n, name in enumerate(self._judged[at:])]

    async def read_weights(
        self, after: str, *, block_s: float = 1.0
    ) -> list[tuple[str, WeightsReady]]:
        at = await self._wait(self._ready, after, block_s)
        return [(str(at + n + 1), ready) for n, ready in enumerate(self._ready[at:])]

    # ---- events without a reader ----

    async def begin_run(self, run_id: str) -> None:
        pass

    async def end_run(self, run_id: str) -> None:
        pass

    async def emit(
        self, kind: str, *, run_id: str = "", step: int | None = None, **data: Any
    ) -> None:
        pass


async def measure(
    bound: int, late: str, steps: int, train_s: float, folder: Path
) -> dict[str, Any]:
    """Conduct one run; seconds are those of the loop."""
    services: dict[TrainedRole, Service] = {
        "policy": Service("policy"),
        "reward": Service("reward"),
    }
    database = open_database(f"sqlite:///{folder / f'{bound}-{late}-{train_s}.sqlite'}")
    store, artifacts = RunStore(database), ArtifactStore(str(folder / "store"))
    everything = Everything(services, train_s, artifacts)
    parts = Parts(
        store=store, broker=everything, artifacts=artifacts,
        env_adapter=Plans(), apis=services, settings=Settings(),
    )  # fmt: skip
    config = parse(
        {
            "run": {"steps": steps, "groups_per_step": GROUPS, "eval_every": 0, "staleness_bound": bound, "late_groups": late},
            "models": {role: {"path": f"/models/{role}"} for role in services},
            "env_adapter": {"rollouts": ROLLOUTS},
            "reward": {"votes": 1},
            "adaptation": {"controller": "none"},
            "algorithm": {"overrides": {"reward_band": "none"}},
        }
    )  # fmt: skip
    made = store.create(name="bench", pool_id="pool", config=config.model_dump(mode="json"))
    started = asyncio.get_running_loop().time()
    await Orchestrator(parts).work_on(made)
    seconds = asyncio.get_running_loop().time() - started
    state = store.get(made.id)
    if state.status != "finished":
        raise SystemExit(f"bound {bound}, {late}: the run {state.status}: {state.reason}")
    steps_done = [step for step in store.steps(made.id) if step.step > 0]
    found = report(steps_done, seconds, +everything.lags)
    database.close()
    return {"bound": bound, "late": late} | found


def report(steps: list[RunStep], seconds: float, lags: Counter[int]) -> dict[str, Any]:
    """Return the figures of a run over all of its steps; `lags` are the staleness values of its rows."""
    metrics = [step.metrics for step in steps]
    trained = sum(m.get("steps/trained", 0.0) for m in metrics)
    stale = sum(m.get("steps/stale weight version", 0.0) for m in metrics)
    groups = sum(m["groups"] for m in metrics)
    return {
        "groups_per_hour": groups / seconds * 3600,
        "step_s": seconds / len(steps),
        "trained_per_hour": trained / seconds * 3600,
        "staleness_max": max(lags),
        "staleness_min": min(lags),
        "staleness_mean": sum(lag * count for lag, count in lags.items()) / lags.total(),
        "masked": stale / max(1.0, trained + stale),
        "rejudged": sum(m.get("votes/rejudged", 0.0) for m in metrics) / (groups * ROLLOUTS),
    }


def main() -> int:
    """Print the table and keep it; 1 if a bound was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        train_s, rows = compare(options.steps, Path(name))
    show(rows, train_s, options.steps)
    keep("async", {"train_s": train_s, "machine": machine(), "wanted": TARGET, "rows": rows})
    broken = any(r["staleness_max"] > r["bound"] or r["staleness_min"] < 0 for r in rows)
    return int(broken or max(r["ratio"] for r in rows if r["bound"] == WANTED_AT) < TARGET)


def compare(steps: int, folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Return the seconds of a training step and one row for each run, with ratios to the synchronous run."""
    alone = run(measure(0, "wait", steps, 0.001, folder))
    train_s = alone["step_s"] / 3  # a quarter of playing and training together
    rows: list[dict[str, Any]] = []
    for bound, late in ((0, "wait"), (1, "wait"), (2, "wait"), (1, "mask"), (2, "mask")):
        row = run(measure(bound, late, steps, train_s, folder))
        first = rows[0] if rows else row
        row["ratio"] = row["groups_per_hour"] / first["groups_per_hour"]
        row["trained_ratio"] = row["trained_per_hour"] / first["trained_per_hour"]
        rows.append(row)
    return train_s, rows


def show(rows: list[dict[str, Any]], train_s: float, steps: int) -> None:
    print(f"{GROUPS} groups of {ROLLOUTS} a step, {steps} steps; training takes {train_s:.1f} s; virtual time ({machine()})")  # fmt: skip
    print(
        "| bound | late_groups | groups/hour | over synchronous | wanted | trained responses over synchronous | seconds a step "
        "| staleness, mean | highest | responses over the bound | episodes judged again |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        wanted = f"{TARGET}" if r["bound"] == WANTED_AT else ""
        print(
            f"| {r['bound']} | {r['late']} | {r['groups_per_hour']:.0f} | {r['ratio']:.2f} | {wanted} | {r['trained_ratio']:.2f} "
            f"| {r['step_s']:.1f} | {r['staleness_mean']:.2f} | {r['staleness_max']} | {r['masked']:.1%} | {r['rejudged']:.1%} |"
        )


if __name__ == "__main__":
    sys.exit(main())
