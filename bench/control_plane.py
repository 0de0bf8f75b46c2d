"""Cost of the loop without models: engine and judge answer at once, the environment does next to nothing.

    loop  CPU milliseconds a judged trajectory, from the orchestrator over the queues and back into a committed step
    pool  a pool of 100,000 tasks from streamed JSONL, and plans drawn from it
    many  10,000 groups through the orchestrator, a thousand in flight: does its memory stay flat

Run: python -m bench.control_plane [--small] [--only PART ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.control_plane_environment import NAME
from bench.control_plane_stack import Meter, Stack, loop
from bench.machine import machine, rss_mib
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.event_loop import run as run_loop
from triforge.types import PlanRequest, RunState

PARTS = ("loop", "pool", "many")
WANTED_MS = 10.0  # of CPU a trajectory, all processes of ours together
CASES = ((1, 1), (5, 1), (5, 3))  # turns of an episode, votes a step
_LINES = 500  # tasks of an upload that are sent at a time
_ORCHESTRATOR = "trainer"


async def run(
    stack: Stack, pool: str, *, groups: int, steps: int, rollouts: int, turns: int, votes: int
) -> dict[str, Any]:
    """One run over `steps` rounds of `groups` groups, one round ahead; every trajectory is judged, credited and recorded.

    It is timed from the record of its beginning (its versions serve, nothing is sent yet) to that of its last step.
    """
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
    async with TrainerClient(stack.settings.trainer_url) as client:
        async with meter.running():
            made = await client.submit(pool, name="bench", config=config)
            state = await _ended(client, made)
        begun, *trained = await client.steps(made.id)
    if state.status != "finished":
        raise SystemExit(f"the run {state.status}: {state.reason}")
    counted = sum(step.metrics["groups"] for step in trained) * rollouts
    if counted != trajectories:
        raise SystemExit(f"{counted:.0f} of {trajectories} trajectories are on record")
    return {
        "groups": groups * steps, "steps": steps, "rollouts": rollouts, "turns": turns, "votes": votes,
        "trajectories": trajectories,
        "trajectories_s": trajectories / (trained[-1].at - begun.at),
        "resent": sum(step.metrics.get("resent", 0.0) for step in trained),
        **meter.report(trajectories),
        "memory": meter.memory,
    }  # fmt: skip


async def _ended(client: TrainerClient, made: RunState) -> RunState:
    while True:
        state = await client.run(made.id)
        if state.status in ("finished", "failed", "stopped"):
            return state
        await asyncio.sleep(0.5)


async def upload(stack: Stack, name: str, tasks: int) -> dict[str, Any]:
    """Make a pool of `tasks` tasks from streamed JSONL, then draw plans from it."""

    async def lines() -> AsyncIterator[bytes]:
        for start in range(0, tasks, _LINES):
            numbers = range(start, min(tasks, start + _LINES))
            yield b"".join(b'{"params": {"number": %d}}\n' % number for number in numbers)

    meter = Meter({"env_adapter": stack.pids["env_adapter"]})
    before = rss_mib(stack.pids["env_adapter"])
    async with EnvAdapterClient(stack.settings.env_adapter_url) as client:
        async with meter.running():
            await client.upload_pool(name, NAME, lines())
        plans = []
        for step in range(1, 9):
            started = time.perf_counter()
            wanted = PlanRequest(
                run_id=f"plans-of-{name}", step=step, kind="train", groups=512, seed=1
            )
            plan = await client.plan(name, wanted)
            plans.append((time.perf_counter() - started) * 1e3)
            assert len(plan) == min(512, tasks)
    return {
        "tasks": tasks, "tasks_s": tasks / meter.seconds, "seconds": meter.seconds,
        "rss_before_mib": before, "rss_peak_mib": meter.peak("env_adapter"),
        "first_plan_ms": plans[0], "plan_ms": sorted(plans[1:])[len(plans) // 2],
    }  # fmt: skip


def flatness(run: dict[str, Any]) -> dict[str, float]:
    """Return the orchestrator's memory in the second quarter of a run and in the last, and the slope between them."""
    samples = run["memory"]
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    first, last = (sum(s[_ORCHESTRATOR] for s in part) / len(part) for part in (early, late))
    share = (late[len(late) // 2]["at"] - early[len(early) // 2]["at"]) / run["seconds"]
    slope = (last - first) / (share * run["groups"]) * 1000
    return {"early_mib": first, "late_mib": last, "mib_per_1000_groups": slope}


async def through_the_loop(stack: Stack, small: bool) -> list[dict[str, Any]]:
    groups, steps = (16, 2) if small else (64, 4)
    await upload(stack, "loop", 2 * groups)
    await run(stack, "loop", groups=8, steps=1, rollouts=8, turns=1, votes=1)  # warm
    return [
        await run(stack, "loop", groups=groups, steps=steps, rollouts=8, turns=turns, votes=votes)
        for turns, votes in CASES
    ]


async def everything(parts: list[str], small: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as name:
        async with loop(Path(name)) as stack:
            if "pool" in parts:
                found["pool"] = await upload(stack, "large", 5_000 if small else 100_000)
            if "many" in parts:  # before longer episodes have made the orchestrator larger
                await upload(stack, "many", 2000)
                groups, steps = (100, 4) if small else (500, 20)
                many = await run(
                    stack, "many", groups=groups, steps=steps, rollouts=2, turns=1, votes=1
                )
                found["many"] = many | {"in_flight": 2 * groups, "orchestrator": flatness(many)}
            if "loop" in parts:
                found["loop"] = await through_the_loop(stack, small)
    return found


def show(found: dict[str, Any]) -> None:
    print(f"machine: {found['machine']}")
    for case in found.get("loop", ()):
        by_process = ", ".join(
            f"{name} {ms:.2f}" for name, ms in case["cpu_ms"].items() if ms >= 0.05
        )
        print(
            f"\n{case['trajectories']} trajectories, {case['turns']} turns, {case['votes']} votes a step: "
            f"{case['cpu_ms_all']:.1f} ms of CPU a trajectory (wanted: {WANTED_MS:g}), "
            f"{case['trajectories_s']:.0f} trajectories/s, {case['resent']:.0f} jobs resent\n  {by_process}"
        )
    if "pool" in found:
        p = found["pool"]
        print(
            f"\npool of {p['tasks']} tasks: {p['tasks_s']:.0f} tasks/s, env_adapter {p['rss_before_mib']:.0f} MiB before, "
            f"{p['rss_peak_mib']:.0f} at most; plan of 512 groups: the first {p['first_plan_ms']:.0f} ms, then {p['plan_ms']:.0f} ms"
        )
    if "many" in found:
        m, c = found["many"], found["many"]["orchestrator"]
        print(
            f"\n{m['groups']} groups of {m['rollouts']}, {m['in_flight']} in flight: {m['trajectories_s']:.0f} trajectories/s; "
            f"orchestrator {c['early_mib']:.1f} MiB early, {c['late_mib']:.1f} late, {c['mib_per_1000_groups']:+.2f} MiB per 1,000 groups"
        )


def main() -> int:
    """Print the figures, write JSON; 1 if a trajectory of one turn and one vote costs more CPU than wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a quick look; its figures say little")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, default=Path("var/bench/control_plane.json"))
    options = parser.parse_args()
    found = run_loop(everything(options.only, options.small))
    show(found)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1))
    first = found.get("loop", [{"cpu_ms_all": 0.0}])[0]
    return int(first["cpu_ms_all"] > WANTED_MS and not options.small)


if __name__ == "__main__":
    sys.exit(main())
