"""Runs through the real loop: judged trajectories a second, what they cost, and how memory goes with many groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from bench.control_plane_environment import NAME
from bench.control_plane_stack import Meter, Stack, rss_mib
from triforge.broker import JUDGED_STREAM
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.types import GroupTask, RunState, Sampling

_LOOK_S = 0.5
_LINES = 500  # tasks of an upload that are sent at a time
ORCHESTRATOR = "trainer"


async def run(
    stack: Stack,
    pool: str,
    *,
    groups: int,
    steps: int,
    rollouts: int,
    turns: int,
    votes: int,
) -> dict[str, Any]:
    """One run over `steps` rounds of `groups` groups, one round ahead; every trajectory is judged, credited and recorded.

    It is timed from the record of its beginning (its versions serve, nothing is sent yet) to that of its last step.
    """
    client = TrainerClient(stack.settings.trainer_url)
    config = {
        "run": {"steps": steps, "groups_per_step": groups, "eval_every": 0, "staleness_bound": 1},
        "models": {
            role: {"path": str(stack.model), "max_new_tokens": 16} for role in ("policy", "reward")
        },
        "env_adapter": {"rollouts": rollouts, "max_steps": turns, "options": {"turns": turns}},
        "reward": {"votes": votes, "prompt": "terse"},
        "adaptation": {"controller": "none"},
    }
    trajectories = groups * steps * rollouts
    meter = Meter(stack.pids)
    try:
        async with meter.running():
            made = await client.submit(pool, name="bench", config=config)
            state = await _ended(client, made)
        recorded = await client.steps(made.id)
    finally:
        await client.close()
    if state.status != "finished":
        raise SystemExit(f"the run {state.status}: {state.reason}")
    begun, *trained = recorded
    assert begun.step == 0
    metrics = [step.metrics for step in trained]
    counted = sum(m["groups"] for m in metrics) * rollouts
    if counted != trajectories:
        raise SystemExit(f"{counted:.0f} of {trajectories} trajectories are on record")
    return {
        "groups": groups * steps, "steps": steps, "rollouts": rollouts, "turns": turns, "votes": votes,
        "trajectories": trajectories,
        "trajectories_s": trajectories / (trained[-1].at - begun.at),
        "resent": sum(m.get("resent", 0.0) for m in metrics),
        "trained_rows": sum(m.get("rows/policy", 0.0) for m in metrics),
        **meter.report(trajectories),
        "memory": meter.memory,
    }  # fmt: skip


async def _ended(client: TrainerClient, made: RunState) -> RunState:
    while True:
        state = await client.run(made.id)
        if state.status in ("finished", "failed", "stopped"):
            return state
        await asyncio.sleep(_LOOK_S)


async def upload(stack: Stack, name: str, tasks: int) -> dict[str, Any]:
    """Make a pool of `tasks` tasks from streamed JSONL, then draw plans from it."""

    async def lines() -> AsyncIterator[bytes]:
        for start in range(0, tasks, _LINES):
            numbers = range(start, min(tasks, start + _LINES))
            yield b"".join(b'{"params": {"number": %d}}\n' % number for number in numbers)

    client = EnvAdapterClient(stack.settings.env_adapter_url)
    meter = Meter({"env_adapter": stack.pids["env_adapter"]})
    before = rss_mib(stack.pids["env_adapter"])
    try:
        async with meter.running():
            await client.upload_pool(name, NAME, lines())
        plans = []
        for step in range(1, 9):
            started = time.perf_counter()
            plan = await client.plan(
                name, run_id=f"plans-of-{name}", step=step, kind="train", groups=512, seed=1, max_pending=0
            )  # fmt: skip
            plans.append((time.perf_counter() - started) * 1e3)
            assert len(plan) == min(512, tasks)
    finally:
        await client.close()
    return {
        "tasks": tasks, "tasks_s": tasks / meter.seconds, "seconds": meter.seconds,
        "rss_before_mib": before, "rss_peak_mib": meter.peak("env_adapter"),
        "first_plan_ms": plans[0], "plan_ms": sorted(plans[1:])[len(plans) // 2],
    }  # fmt: skip


def flatness(run: dict[str, Any]) -> dict[str, float]:
    """The orchestrator's memory in the second quarter of a run and in the last, and the slope between them."""
    samples = run["memory"]
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    first, last = (sum(s[ORCHESTRATOR] for s in part) / len(part) for part in (early, late))
    share = (late[len(late) // 2]["at"] - early[len(early) // 2]["at"]) / run["seconds"]
    return {
        "early_mib": first,
        "late_mib": last,
        "mib_per_1000_groups": (last - first) / (share * run["groups"]) * 1000,
    }


async def rollouts_only(
    stack: Stack, pool: str, prompts: int, each: int, turns: int
) -> dict[str, Any]:
    """Rollouts without a judge, from the sending of the groups to the last one's announcement."""
    client = EnvAdapterClient(stack.settings.env_adapter_url)
    ids = []
    async for task in client.tasks(pool):
        ids.append(task.id)
        if len(ids) == prompts:
            break
    await client.close()
    broker, tag = stack.broker, f"{time.time_ns()}"
    cursor = await broker.last_id(JUDGED_STREAM)
    jobs = [
        GroupTask(
            group_id=f"alone-{tag}-{number:04d}", run_id=f"alone-{tag}", step=0, task_id=name, purpose="evaluate",
            rollouts=each, seed=number, sampling=Sampling(max_new_tokens=16), max_steps=turns, deadline_s=60.0,
            options={"turns": turns},
        )
        for number, name in enumerate(ids)
    ]  # fmt: skip
    meter = Meter(stack.pids)
    done = 0
    async with meter.running(), asyncio.timeout(120):
        for job in jobs:
            await broker.send_rollout(job)
        while done < len(jobs):
            for entry, _ in await broker.read_judged(cursor):
                cursor, done = entry, done + 1
    measured = 0
    for job in jobs:
        group = await broker.group(job.group_id)
        assert group is not None
        measured += sum(t.measured and len(t.steps) == turns for t in group.trajectories)
        await broker.forget_group(job.group_id, tuple(t.id for t in group.trajectories))
    count = prompts * each
    return {"rollouts": count, "good": measured, "rollouts_s": count / meter.seconds} | meter.report(count)  # fmt: skip
