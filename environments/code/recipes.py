"""A recipe and what is cooked from it: the statement, the reference solution, tests, and wrong solutions.

    {"kind": "numbers", "steps": ["even", "add:2", "reverse"], "final": "list", "seed": 17}

Everything follows from the recipe. A recipe is sound when every step matters: without any one of them some test has
another answer. Wrong solutions are recipes that differ a little (a step left out, two swapped, another argument,
another ending) and answer at least one hidden test differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from environments.code.operations import WORLDS, Kind, World, choices, resolved
from triforge.sandbox.cases import Case

PUBLIC: Final = 2
MUTANTS: Final = 3
SIZES: Final = (5, 7, 0, 1, 4, 6, 9, 12)  # of the tests' data; the first two are shown


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a problem is made of: choices of `operations`, at most one of a name, and the seed of its tests."""

    kind: Kind
    steps: tuple[str, ...]
    final: str
    seed: int

    @property
    def world(self) -> World:
        """Its kind of data."""
        return WORLDS[self.kind]


def inputs(recipe: Recipe) -> list[Any]:
    """The data of its tests; they depend on kind and seed only, so that near recipes are compared on the same data."""
    rng = Random(f"code {recipe.kind} {recipe.seed}")  # noqa: S311
    return [recipe.world.draw(rng, size) for size in SIZES]


def answers(recipe: Recipe) -> list[str]:
    """What has to be printed in each test."""
    out = []
    for data in inputs(recipe):
        for choice in recipe.steps:
            operation, argument = resolved(recipe.world.steps, choice)
            data = operation.function(data, argument)
        operation, argument = resolved(recipe.world.finals, recipe.final)
        out.append(f"{operation.function(data, argument)}\n")
    return out


def cases(recipe: Recipe) -> list[Case]:
    """Its tests, those that are shown first."""
    written = [recipe.world.written(data) for data in inputs(recipe)]
    return [Case(given, answer) for given, answer in zip(written, answers(recipe), strict=True)]


def question(recipe: Recipe) -> str:
    """The statement, without examples."""
    lines = [
        f"Write a Python program that reads from its standard input {recipe.world.told}. It does the following, in this order:"
    ]
    for number, choice in enumerate(recipe.steps, start=1):
        operation, argument = resolved(recipe.world.steps, choice)
        lines.append(f"{number}. {operation.sentence.format(n=argument)}")
    operation, argument = resolved(recipe.world.finals, recipe.final)
    return "\n".join([*lines, f"Then {operation.sentence.format(n=argument)}"])


def program(recipe: Recipe) -> str:
    """A program that does what the recipe says."""
    lines = [*recipe.world.reads]
    for table, choice in (
        *((recipe.world.steps, step) for step in recipe.steps),
        (recipe.world.finals, recipe.final),
    ):
        operation, argument = resolved(table, choice)
        lines.append(operation.line.replace("{n}", str(argument)))
    return "\n".join([*lines, "print(answer)", ""])


def is_sound(recipe: Recipe) -> bool:
    """Whether the tests tell it from each recipe with one step less, do not all want the same, and can be told wrong."""
    right = answers(recipe)
    shorter = (answers(without) for without in _shortened(recipe))
    return len(set(right)) > 2 and all(other != right for other in shorter)


def mutants(recipe: Recipe) -> list[str]:
    """Wrong solutions, at most `MUTANTS`: each fails at least one hidden test, no two fail alike."""
    right = answers(recipe)
    rng = Random(f"mutants {recipe}")  # noqa: S311
    near = list(_near(recipe))
    rng.shuffle(near)
    found: dict[tuple[str, ...], str] = {}
    for wrong in near:
        given = answers(wrong)
        if given[PUBLIC:] != right[PUBLIC:]:
            found.setdefault(tuple(given), program(wrong))
    return list(found.values())[:MUTANTS]


def _shortened(recipe: Recipe) -> Iterator[Recipe]:
    for i in range(len(recipe.steps)):
        yield replace(recipe, steps=recipe.steps[:i] + recipe.steps[i + 1 :])


def _near(recipe: Recipe) -> Iterator[Recipe]:
    yield from _shortened(recipe)
    steps = recipe.steps
    for i in range(len(steps) - 1):
        yield replace(recipe, steps=(*steps[:i], steps[i + 1], steps[i], *steps[i + 2 :]))
    for i, choice in enumerate(steps):
        name = choice.partition(":")[0]
        for other in choices({name: recipe.world.steps[name]}):
            if other != choice:
                yield replace(recipe, steps=(*steps[:i], other, *steps[i + 1 :]))
    for final in choices(recipe.world.finals):
        if final != recipe.final:
            yield replace(recipe, final=final)


def names(steps: Sequence[str]) -> list[str]:
    """Their names, without arguments."""
    return [step.partition(":")[0] for step in steps]
