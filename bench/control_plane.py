"""Cost of the loop without models: engine and judge answer at once, the environment does next to nothing.

Measured are CPU milliseconds a judged trajectory, from the orchestrator over the queues and back into a committed step.

Run: python -m bench.control_plane [--small]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.control_plane_environment import NAME
from bench.control_plane_stack import Meter, Stack, loop
from bench.machine import keep, machine
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.event_loop import run as run_loop
from triforge.types import RunState

WANTED_MS = 10.0  # of CPU a trajectory, all processes of ours together
CASES = ((1, 1), (5, 1), (5, 3))  # turns of an episode, votes a step
_LINES = 500  # tasks of an upload that are sent at a time


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
        with meter.running():
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
    }  # fmt: skip


async def _ended(client: TrainerClient, made: RunState) -> RunState:
    while True:
        state = await client.run(made.id)
        if state.status in ("finished", "failed", "stopped"):
            return state
        await asyncio.sleep(0.5)


async def upload(stack: Stack, tasks: int) -> None:
    """Make a pool of `tasks` tasks from streamed JSONL."""

    async def lines() -> AsyncIterator[bytes]:
        for start in range(0, tasks, _LINES):
            numbers = range(start, min(tasks, start + _LINES))
            yield b"".join(b'{"params": {"number": %d}}\n' % number for number in numbers)

    async with EnvAdapterClient(stack.settings.env_adapter_url) as client:
        await client.upload_pool("loop", NAME, lines())


async def through_the_loop(stack: Stack, small: bool) -> list[dict[str, Any]]:
    groups, steps = (16, 2) if small else (64, 4)
    await upload(stack, 2 * groups)
    await run(stack, "loop", groups=8, steps=1, rollouts=8, turns=1, votes=1)  # warm
    return [
        await run(stack, "loop", groups=groups, steps=steps, rollouts=8, turns=turns, votes=votes)
        for turns, votes in CASES
    ]


async def everything(small: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        async with loop(Path(name)) as stack:
            return {"machine": machine(), "loop": await through_the_loop(stack, small)}


def show(found: dict[str, Any]) -> None:
    print(f"machine: {found['machine']}")
    for case in found["loop"]:
        by_process = ", ".join(
            f"{name} {ms:.2f}" for name, ms in case["cpu_ms"].items() if ms >= 0.05
        )
        print(
            f"\n{case['trajectories']} trajectories, {case['turns']} turns, {case['votes']} votes a step: "
            f"{case['cpu_ms_all']:.1f} ms of CPU a trajectory (wanted: {WANTED_MS:g}), "
            f"{case['trajectories_s']:.0f} trajectories/s, {case['resent']:.0f} jobs resent\n  {by_process}"
        )


def main() -> int:
    """Print the figures, write JSON; 1 if a trajectory of one turn and one vote costs more CPU than wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a quick look; its figures say little")
    options = parser.parse_args()
    found = run_loop(everything(options.small))
    show(found)
    keep("control_plane", found)
    return int(found["loop"][0]["cpu_ms_all"] > WANTED_MS and not options.small)


if __name__ == "__main__":
    sys.exit(main())
