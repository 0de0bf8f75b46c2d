"""Small worlds that tables of numbers learn by the product's own arithmetic: curves in seconds, and no claim on language models."""

from __future__ import annotations

import time
from importlib import import_module

from experiments.record import Result, Tell
from experiments.settings import Arm


def play(name: str, arm: Arm, seed: int, *, tell: Tell) -> Result:
    """Write the curve of the arm's world, a point a step."""
    started, result = time.monotonic(), Result(name, seed)
    world = import_module(f"experiments.toys.{arm.config['toy']}")
    for value in world.curve(seed, **arm.config["options"]):
        result.steps.append(value if isinstance(value, dict) else {"success": value})
        tell({"steps": result.steps[-1]})
    result.seconds = time.monotonic() - started
    tell({"arm": name, "seed": seed, "seconds": result.seconds})
    return result
