"""One run of the experiment on methods: a toy's curve, or a run in the household."""

from __future__ import annotations

import time
from importlib import import_module

from experiments.loop import Run
from experiments.loop import play as play_run
from experiments.record import Models, Result, Tell, silent
from experiments.settings import Arm, Settings
from experiments.study import is_toy
from experiments.vote_quality import Row


class MethodsRun(Run):
    """In which no vote is cast that could be looked at again."""

    async def _judge_again(self) -> dict[str, list[Row]]:
        return {}


def play(
    name: str, arm: Arm, seed: int, settings: Settings, models: Models, *, tell: Tell = silent
) -> Result:
    """Play one run in this process."""
    if not is_toy(arm):
        return play_run(name, arm, seed, settings, models, tell=tell, make=MethodsRun)
    started, result = time.monotonic(), Result(name, seed)
    world = import_module(f"experiments.toys.{arm.config['toy']}")
    for value in world.curve(seed, **arm.config["options"]):
        result.steps.append({"success": value})
        tell({"steps": result.steps[-1]})
    result.seconds = time.monotonic() - started
    tell({"arm": name, "seed": seed, "seconds": result.seconds})
    return result
