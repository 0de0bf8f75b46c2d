"""Generated problems, sound by computation and proved in the sandbox."""

from __future__ import annotations

from random import Random
from typing import Annotated, Final

from pydantic import Field, JsonValue

from environments.code.execution import prove, wait_for
from environments.code.operations import WORLDS, Kind, choices
from environments.code.params import params_of
from environments.code.recipes import MAX_STEPS, Recipe, names
from triforge.environments.kit import ORDERED, Strict, parse_model
from triforge.errors import EnvError, InputError
from triforge.event_loop import together
from triforge.sandbox.client import Sandbox
from triforge.types import Params

_DRAWS: Final = 200  # of recipes for one problem, until one is sound

Span = Annotated[
    list[Annotated[int, Field(ge=1, le=MAX_STEPS)]], Field(min_length=2, max_length=2), ORDERED
]


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    kinds: list[Kind] = Field(default_factory=lambda: list(WORLDS), min_length=1)
    steps: Span = Field(default_factory=lambda: [1, 3])
    proved: bool = True


def generate(sandbox: Sandbox, *, count: int, seed: int, options: Params) -> list[Params]:
    """Make `count` problems. Problem i depends on seed, i and options only."""
    wanted = parse_model(GeneratorOptions, options, "code generate")
    drawn = [params_of(_draw(wanted, seed, index)) for index in range(count)]
    results = wait_for(together(prove(sandbox, one) for one in drawn)) if wanted.proved else []
    for trouble, _ in results:
        if trouble:
            raise EnvError(f"code: a generated problem does not hold: {trouble}")
    return [problem.model_dump(mode="json") for problem in drawn]


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
    return {**options, "steps": steps}
