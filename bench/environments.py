"""How fast the environments are: steps per CPU second, reset, and whether 64 episodes at once hold an event loop.

    python -m bench.environments [FAMILY ...] [--seconds 2]

Every family plays generated tasks with seeded random admissible commands (questions: an answer that is wrong; code: a
program that is). CPU seconds are
those of this process and of all below it (workers, sandboxes, browsers). Where an engine of others is behind a family, the
same games and the same commands are played on it alone, side by side. `--seconds` is the time a measurement takes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from triforge.environments import registry
from triforge.errors import TriforgeError
from triforge.rollout.isolation import IsolatedEnvironment
from triforge.rollout.protocols import Environment, EnvironmentFamily
from triforge.sandbox.kernel import processes
from triforge.types import Params, Task

TASKS, AT_ONCE, LONGEST = 16, 64, 40
LIMIT_MS = 50.0
ELSEWHERE = {
    "alfworld": "its engine has processes of its own; python -m bench.household measures them",
    "harbor": "plays task folders: what a script costs stands in its README",
    "mcp": "plays on servers of others",
    "openenv": "plays on another server",
    "osworld": "drives a machine elsewhere",
}
OPTIONS: dict[str, Params] = {
    "reasoning_gym": {"datasets": ["chain_sum", "letter_counting", "word_sorting", "maze"]},
    "rlve_gym": {"environments": ["Sorting", "Multiplication", "BezoutIdentity"]},
}
ANSWERS = {"code": "```python\nprint(0)\n```"}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Bench:
    """One family with the tasks it is measured on."""

    family: EnvironmentFamily
    tasks: tuple[Task, ...]

    def environment(self) -> Environment:
        if getattr(self.family, "never_blocks", False):
            return self.family.make({})
        return IsolatedEnvironment(lambda: self.family.make({}))

    @staticmethod
    def cpu() -> float:
        """CPU seconds of this process and of all below it, also of those that have ended."""
        dead = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = time.process_time() + dead.ru_utime + dead.ru_stime
        seen = processes()
        below = [os.getpid()]
        while below:
            parent = below.pop()
            children = [pid for pid, one in seen.items() if one.parent == parent]
            used += sum(seen[pid].cpu_s for pid in children)
            below += children
        return used


def prepare(name: str) -> Bench:
    """Load a family and make its tasks."""
    family = registry.family(name)
    made = family.generate(count=TASKS, seed=1, options=OPTIONS.get(name, {}))
    tasks = []
    for number, params in enumerate(made):
        draft = family.validate(params)
        tasks.append(
            Task(id=f"t{number}", pool_id="bench", slot=f"t{number}", family=name,
                 instruction=draft.instruction, params=draft.params)
        )  # fmt: skip
    return Bench(family, tuple(tasks))


async def play(bench: Bench, task: Task, seed: int, pause: bool) -> tuple[float, list[str]]:
    """One episode of random admissible commands: (seconds of its reset, the commands)."""
    rng, environment, moves_made = Random(seed), bench.environment(), []
    begun = time.perf_counter()
    try:
        seen = (await environment.reset(task, seed=seed)).observation
        reset = time.perf_counter() - begun
        for _ in range(LONGEST):
            wrong = ANSWERS.get(task.family, "<answer>no</answer>")
            moves_made.append(rng.choice(seen.admissible or (wrong,)))
            result = await environment.step(moves_made[-1])
            if result.done:
                break
            seen = result.observation
            if pause:
                await asyncio.sleep(0)  # where the policy would be asked
    finally:
        await environment.close()
    return reset, moves_made


async def one_by_one(bench: Bench, seconds: float) -> tuple[float, float, list[list[str]]]:
    """Return (steps per CPU second, median reset in ms, the commands of the first episodes)."""
    await play(bench, bench.tasks[0], 0, pause=False)  # imports and caches
    resets, played, steps = [], [], 0
    cpu, until = bench.cpu(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        number = len(resets)
        reset, moves_made = await play(bench, bench.tasks[number % TASKS], number, pause=False)
        resets.append(reset)
        played.append(moves_made)
        steps += len(moves_made)
    return (
        steps / max(bench.cpu() - cpu, 1 / _TICKS),
        statistics.median(resets) * 1000,
        played[:200],
    )


async def at_once(bench: Bench) -> tuple[float, float, float]:
    """64 episodes in one process: (steps per second, longest block of the event loop in ms, of which its own work).

    On a busy machine the block is longer than the work, because the process waits for a core.
    """
    gaps: list[float] = []
    works: list[float] = []
    over = asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            before, work = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            gaps.append(time.perf_counter() - before - 0.001)
            works.append(time.thread_time() - work)

    watching = asyncio.create_task(watch())
    begun = time.perf_counter()
    games = [play(bench, bench.tasks[n % TASKS], n, pause=True) for n in range(AT_ONCE)]
    played = await asyncio.gather(*games)
    seconds = time.perf_counter() - begun
    over.set()
    await watching
    return (
        sum(len(moves_made) for _, moves_made in played) / seconds,
        max(gaps) * 1000,
        max(works) * 1000,
    )


def stock_toy_text(bench: Bench, played: list[list[str]]) -> float:
    """Return the steps per CPU second of gymnasium alone, on the same games with the same moves."""
    from environments.toy_text.family import FAMILY  # noqa: PLC0415
    from environments.toy_text.games import game_of  # noqa: PLC0415

    steps, begun = 0, time.process_time()
    for number, words in enumerate(played):
        game = game_of(FAMILY.read(bench.tasks[number % TASKS].params))
        engine: Any = game.engine()
        game.start(engine, number)
        for word in words:
            engine.step(game.words.index(word))
        steps += len(words)
    return steps / max(time.process_time() - begun, 1e-9)


STOCK: dict[str, tuple[str, Callable[[Bench, list[list[str]]], float]]] = {
    "toy_text": ("gymnasium", stock_toy_text)
}


def measure(name: str, seconds: float) -> str:
    if name in ELSEWHERE:
        return f"{name:14} left out: {ELSEWHERE[name]}"
    try:
        bench = prepare(name)
    except TriforgeError as error:
        return f"{name:14} left out: {error.detail}"
    rate, reset, played = asyncio.run(one_by_one(bench, seconds))
    together, block, work = asyncio.run(at_once(bench))
    line = f"{name:14} {rate:12,.0f} {reset:12.2f} {together:14,.0f} {block:10.1f} {work:10.1f}"
    if name in STOCK:
        other, stock = STOCK[name]
        its = stock(bench, played)
        line += f"   {other} {its:,.0f}/cpu-s, ours {rate / its:.2f} of it"
    worker = getattr(bench.family, "worker", None)
    if worker is not None:
        worker.close()
    return line + ("" if block <= LIMIT_MS else f"   over {LIMIT_MS:g} ms")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("families", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args(arguments)
    head = ("family", "steps/cpu-s", "reset ms", "64 at once /s", "block ms", "work ms")
    print(
        f"{head[0]:14} {head[1]:>12} {head[2]:>12} {head[3]:>14} {head[4]:>10} {head[5]:>10}   alone"
    )
    for name in given.families or registry.known():
        print(measure(name, given.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
