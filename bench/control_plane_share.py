"""The loop beside what the queue alone bears, in turns, so that both see the same machine.

    queue alone, loop, queue alone, loop, ..., queue alone

Each round of the loop is held against the mean of the two rounds of the queue alone that are its neighbours. Whatever is not
measured waits meanwhile. What is wanted has to hold in the median round, for both ways to use the queue (`control_plane_noop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.control_plane_loop import run, upload
from bench.control_plane_noop import ROLLOUTS, WORKERS, Alone, queue_alone
from bench.control_plane_stack import Stack, cpu_s

WANTED_SHARE = 0.6
_ROUNDS, _SMALL_ROUNDS = 5, 2
_NAMES = {"celery": "as Celery comes", "loop": "as the loop uses it"}


def shares(loop: Sequence[float], alone: Sequence[float]) -> list[float]:
    """Each round of the loop over the mean of what the queue alone bore before and after it, trajectories a second."""
    return [2 * one / (alone[i] + alone[i + 1]) for i, one in enumerate(loop)]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


async def through_the_loop(stack: Stack, folder: Path, small: bool) -> dict[str, Any]:
    """Rounds of the loop between rounds of the queue alone; then the loop with longer episodes."""
    await upload(stack, "short", 512)
    groups, steps, many = (64, 2, 64) if small else (128, 6, 320)
    await run(stack, "short", groups=16, steps=1, rollouts=ROLLOUTS, turns=1, votes=1)  # warm
    loop: list[dict[str, Any]] = []
    alone: dict[str, list[dict[str, Any]]] = {way: [] for way in WORKERS}
    with contextlib.ExitStack() as open_queues:
        queues = {
            way: await asyncio.to_thread(open_queues.enter_context, queue_alone(folder / way, way))
            for way in WORKERS
        }
        for number in range((_SMALL_ROUNDS if small else _ROUNDS) + 1):
            if number:
                loop.append(
                    await run(stack, "short", groups=groups, steps=steps, rollouts=ROLLOUTS, turns=1, votes=1)
                )  # fmt: skip
                _tell(f"round {number}", loop[-1])
            for way, queue in queues.items():
                alone[way].append(await asyncio.to_thread(_alone, queue, many, stack.pids))
                _tell(f"the queue alone, {_NAMES[way]}", alone[way][-1])
    longer = await run(stack, "short", groups=groups, steps=2, rollouts=ROLLOUTS, turns=6, votes=3)
    found = {way: shares(_rates(loop), _rates(rounds)) for way, rounds in alone.items()}
    middle = {way: summary(values) for way, values in found.items()}
    return {
        "alone": alone, "rounds": loop, "longer": longer, "shares": found, "share": middle,
        "reached": all(one["median"] >= WANTED_SHARE for one in middle.values()),
    }  # fmt: skip


def _alone(queue: Alone, groups: int, others: Mapping[str, int]) -> dict[str, Any]:
    """A round of the queue alone, and how many cores the loop kept busy although nothing was asked of it."""
    waiting = [pid for pid in others.values() if pid not in queue.pids.values()]
    before = sum(map(cpu_s, waiting))
    found = queue.through(groups, ROLLOUTS)
    return found | {"others_cores": (sum(map(cpu_s, waiting)) - before) / found["seconds"]}


def _tell(name: str, found: Mapping[str, Any]) -> None:
    """A line for whoever waits."""
    print(
        f"{name}: {found['trajectories_s']:.0f} trajectories/s, {found['cpu_ms_all']:.2f} CPU ms, {found['cores']:.2f} cores",
        file=sys.stderr,
        flush=True,
    )


def _rates(rounds: Sequence[Mapping[str, Any]]) -> list[float]:
    return [one["trajectories_s"] for one in rounds]


def _middle(rounds: Sequence[Mapping[str, Any]], name: str) -> str:
    found = summary([one[name] for one in rounds])
    digits = 0 if found["median"] >= 100 else 2
    median, least, most = (f"{found[key]:.{digits}f}" for key in ("median", "least", "most"))
    return f"{median} ({least} to {most})"


def show_share(found: Mapping[str, Any]) -> None:
    """Print the tables."""
    rows = {f"the queue alone, {_NAMES[way]}": rounds for way, rounds in found["alone"].items()}
    rows |= {"loop, 1 turn, 1 vote": found["rounds"], "loop, 6 turns, 3 votes a turn": [found["longer"]]}  # fmt: skip
    print("\n| median of the rounds (least to most) | rounds | trajectories/s | CPU ms a trajectory | cores |")  # fmt: skip
    print("|---|---|---|---|---|")
    for name, rounds in rows.items():
        shown = " | ".join(_middle(rounds, n) for n in ("trajectories_s", "cpu_ms_all", "cores"))
        print(f"| {name} | {len(rounds)} | {shown} |")
    columns = {"1 turn": found["rounds"], "6 turns": [found["longer"]]}
    for name, rounds in columns.items():
        cost = statistics.median(one["cpu_ms_all"] for one in rounds)
        per_step = rounds[0]["trajectories"] / rounds[0]["steps"]
        print(
            f"with {name}: CPU ms a turn {cost / rounds[0]['turns']:.2f}, "
            f"a training step of {per_step:.0f} trajectories {cost * per_step:.0f}"
        )
    idle = [one["others_cores"] for rounds in found["alone"].values() for one in rounds]
    print(f"cores that the waiting loop kept busy meanwhile: at most {max(idle):.2f}")
    for way, share in found["share"].items():
        each = ", ".join(f"{value:.0%}" for value in found["shares"][way])
        print(
            f"share of the queue alone, {_NAMES[way]}: {share['median']:.0%} ({each}); wanted {WANTED_SHARE:.0%}, "
            f"{'reached' if share['median'] >= WANTED_SHARE else 'not reached'}"
        )
    print(
        f"jobs sent again: {sum(one['resent'] for one in (*found['rounds'], found['longer'])):.0f}"
    )
    _show_processes(columns)


def _show_processes(columns: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    print("\n| CPU ms a trajectory | " + " | ".join(columns) + " |\n|---|---|---|")
    for name in next(iter(columns.values()))[0]["cpu_ms"]:
        means = [statistics.mean(one["cpu_ms"][name] for one in rounds) for rounds in columns.values()]  # fmt: skip
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in means) + " |")
