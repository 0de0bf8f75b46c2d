"""How fast the environments are: steps per CPU second, reset, and whether 64 episodes at once hold an event loop.

    python -m bench.environments [FAMILY ...] [--seconds 2]

Every family plays generated tasks with seeded random admissible commands (questions: an answer that is wrong; code: a
program that is). CPU seconds are
those of this process and of all below it (workers, sandboxes, browsers). `--seconds` is the time a measurement takes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from random import Random

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


async def play(bench: Bench, task: Task, seed: int, pause: bool) -> tuple[float, int]:
    """Play an episode of random admissible commands: (seconds of its reset, steps)."""
    rng, environment, steps = Random(seed), bench.environment(), 0
    begun = time.perf_counter()
    try:
        seen = (await environment.reset(task, seed=seed)).observation
        reset = time.perf_counter() - begun
        for _ in range(LONGEST):
            wrong = ANSWERS.get(task.family, "<answer>no</answer>")
            result = await environment.step(rng.choice(seen.admissible or (wrong,)))
            steps += 1
            if result.done:
                break
            seen = result.observation
            if pause:
                await asyncio.sleep(0)  # where the policy would be asked
    finally:
        await environment.close()
    return reset, steps


async def one_by_one(bench: Bench, seconds: float) -> tuple[float, float]:
    """Return (steps per CPU second, median reset in ms)."""
    await play(bench, bench.tasks[0], 0, pause=False)  # imports and caches
    resets, steps = list[float](), 0
    cpu, until = bench.cpu(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        number = len(resets)
        reset, made = await play(bench, bench.tasks[number % TASKS], number, pause=False)
        resets.append(reset)
        steps += made
    return steps / max(bench.cpu() - cpu, 1 / _TICKS), statistics.median(resets) * 1000


async def at_once(bench: Bench) -> tuple[float, float]:
    """Play 64 episodes in one process: (steps per second, longest block of the event loop in ms)."""
    gaps: list[float] = []
    over = asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            gaps.append(time.perf_counter() - before - 0.001)

    watching = asyncio.create_task(watch())
    begun = time.perf_counter()
    games = [play(bench, bench.tasks[n % TASKS], n, pause=True) for n in range(AT_ONCE)]
    played = await asyncio.gather(*games)
    seconds = time.perf_counter() - begun
    over.set()
    await watching
    return sum(steps for _, steps in played) / seconds, max(gaps) * 1000


def measure(name: str, seconds: float) -> str:
    if name in ELSEWHERE:
        return f"{name:14} left out: {ELSEWHERE[name]}"
    try:
        bench = prepare(name)
    except TriforgeError as error:
        return f"{name:14} left out: {error.detail}"
    rate, reset = asyncio.run(one_by_one(bench, seconds))
    together, block = asyncio.run(at_once(bench))
    worker = getattr(bench.family, "worker", None)
    if worker is not None:
        worker.close()
    line = f"{name:14} {rate:12,.0f} {reset:12.2f} {together:14,.0f} {block:10.1f}"
    return line + ("" if block <= LIMIT_MS else f"   over {LIMIT_MS:g} ms")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("families", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args(arguments)
    print(
        f"{'family':14} {'steps/cpu-s':>12} {'reset ms':>12} {'64 at once /s':>14} {'block ms':>10}"
    )
    for name in given.families or registry.known():
        print(measure(name, given.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
