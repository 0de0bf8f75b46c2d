"""The household compared with ALFWorld's engine: the same games, the same commands, steps per CPU second.

    python -m bench.household [--games 12]

The games are those of `make test-alfworld`, with their commands. `stock` is ALFWorld's engine as it comes, `memo` the same
with what the family alfworld remembers. Our figure is a whole step of the environment (reading the response, the label for
judges, the list of admissible commands), the other that of the engine's process alone. Without alfworld (an interpreter in
`ALFWORLD_PYTHON`, ours, or .venv-alfworld) only ours is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from bench.machine import cpu_s
from environments.alfworld.engine import Engine
from environments.household.family import FAMILY
from environments.household.params import params_of
from environments.household.wording import announce
from environments.household.world import World
from scripts.real_alfworld.game_files import problem
from scripts.real_alfworld.play import commands, worlds
from triforge.types import Task

TIMES, ATLEAST, RESET_MS = 20, 200, 5.0
_ALFWORLD_PYTHON = Path(__file__).parents[1] / ".venv-alfworld" / "bin" / "python"

Games = list[tuple[World, list[str]]]


async def household(games: Games) -> tuple[float, float, float]:
    """Return (steps per CPU second, median and longest reset in ms of CPU time), each game played `TIMES` times."""
    steps, spent, resets = 0, 0.0, []
    for world, commands_played in games * TIMES:
        instruction = announce(world)
        task = Task(
            id="b",
            pool_id="b",
            slot="b",
            family="household",
            instruction=instruction,
            params=params_of(world),
        )
        environment = FAMILY.make({"wording": "alfworld"})
        begun = time.process_time()
        await environment.reset(task, seed=0)
        resets.append((time.process_time() - begun) * 1000)
        begun = time.process_time()
        for command in commands_played:
            await environment.step(command)
        spent += time.process_time() - begun
        steps += len(commands_played)
    return steps / spent, statistics.median(resets), max(resets)


def alfworld(games: Games, python: str | None, *, memo: bool) -> tuple[float, float]:
    """Return (steps per CPU second of the engine's process, mean CPU seconds of load and reset)."""
    engine = Engine(memo=memo, processes=1, python=python)
    steps, spent, loading = 0, 0.0, 0.0
    try:
        engine.sources()  # starts the process
        for world, commands_played in games:
            before = _cpu(engine)
            game = engine.start(problem=problem(world), task=announce(world))
            begun = _cpu(engine)
            for command in commands_played:
                game.step(command)
            game.end()
            spent += _cpu(engine) - begun
            loading += begun - before
            steps += len(commands_played)
    finally:
        engine.close()
    return steps / spent, loading / len(games)


def _cpu(engine: Engine) -> float:
    process = engine._workers[0]._process
    assert process is not None
    return cpu_s(process.pid)


def _interpreter() -> tuple[bool, str | None]:
    """Whether alfworld is there, and under which interpreter (None is ours)."""
    named = os.environ.get("ALFWORLD_PYTHON") or (
        str(_ALFWORLD_PYTHON) if _ALFWORLD_PYTHON.is_file() else None
    )
    return named is not None or find_spec("alfworld") is not None, named


def main(arguments: list[str]) -> int:
    """Print a line for each engine; returns 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--games", type=int, default=12)
    given = parser.parse_args(arguments)
    every = list(enumerate(worlds()))
    chosen = every[:: max(1, len(every) // given.games)][: given.games]
    games = [(world, list(commands(world, number))) for number, world in chosen]
    rate, reset, longest = asyncio.run(household(games))
    print(
        f"household       {rate:10,.0f} steps/cpu-s   reset {reset:.2f} ms (longest {longest:.2f})"
    )
    missed = reset > RESET_MS
    there, python = _interpreter()
    if not there:
        print("alfworld        left out: not installed; `make test-alfworld` installs it")
        return int(missed)
    for name, memo in (("stock", False), ("memo", True)):
        its, load = alfworld(games, python, memo=memo)
        print(
            f"alfworld {name:6} {its:10,.1f} steps/cpu-s   load and reset {load:.2f} cpu-s   household is {rate / its:,.0f} times as fast"
        )
        missed = missed or (not memo and rate < ATLEAST * its)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
