"""Recipes, and the parts of a problem that follow from one: statement, reference solution, tests, wrong solutions.

    {"kind": "numbers", "steps": ["even", "add:2", "reverse"], "final": "list", "seed": 17}

A recipe is sound when every step matters: without any one of them some test has another answer. Wrong solutions are recipes
that differ a little (a step left out, two swapped, another argument, another ending) and fail at least one hidden test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Annotated, Any, Final

from pydantic import Field

from environments.code.operations import WORLDS, Kind, Operation, World, choices, resolved
from triforge.environments.kit import Strict
from triforge.sandbox.cases import Case

PUBLIC: Final = 2
MUTANTS: Final = 3
MAX_STEPS: Final = 6
SIZES: Final = (5, 7, 0, 1, 4, 6, 9, 12)  # of the tests' data; the first two are shown


class Recipe(Strict):
    """Choices of `operations`, at most one of a name, and the seed of the tests; `whole` are the steps of a problem that it is a part of."""

    kind: Kind
    steps: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_STEPS, strict=False)]
    final: str
    seed: int = Field(ge=0, lt=2**31)
    whole: Annotated[tuple[str, ...], Field(max_length=MAX_STEPS, strict=False)] = Field(
        default=(), repr=False, exclude_if=lambda steps: not steps
    )

    @property
    def world(self) -> World:
        return WORLDS[self.kind]

    @property
    def operations(self) -> list[tuple[Operation, int]]:
        """The operations of its steps and of its ending, each with its argument."""
        steps = [resolved(self.world.steps, step) for step in self.steps]
        return [*steps, resolved(self.world.finals, self.final)]

    def but(self, *, steps: tuple[str, ...] | None = None, final: str | None = None) -> Recipe:
        """Return the recipe with other steps or another ending."""
        changed = {"steps": self.steps if steps is None else steps, "final": final or self.final}
        return self.model_copy(update=changed | {"whole": ()})

    def part(self, steps: tuple[str, ...]) -> Recipe:
        """Return the problem with these neighbouring steps of the whole one."""
        whole = self.whole or self.steps
        changed = {"steps": steps, "whole": () if steps == whole else whole}
        return self.model_copy(update=changed)

    def parts(self) -> Iterator[Recipe]:
        """Yield all parts of the whole problem, the longest first."""
        whole = self.whole or self.steps
        for length in range(len(whole), 0, -1):
            for first in range(len(whole) - length + 1):
                yield self.part(whole[first : first + length])

    def can_be_posed(self) -> bool:
        """Return whether it is sound and has wrong solutions, so that it makes a problem."""
        return is_sound(self) and bool(mutants(self))


def inputs(recipe: Recipe) -> list[Any]:
    """Return the data of its tests, which depend on kind and seed only: near recipes are compared on the same data."""
    rng = Random(f"code {recipe.kind} {recipe.seed}")  # noqa: S311
    return [recipe.world.draw(rng, size) for size in SIZES]


def answers(recipe: Recipe) -> list[str]:
    """Return the expected output of each test."""
    outputs = []
    for data in inputs(recipe):
        for operation, argument in recipe.operations:
            data = operation.function(data, argument)
        outputs.append(f"{data}\n")
    return outputs


def cases(recipe: Recipe) -> list[Case]:
    """Return its tests, the public ones first."""
    written = [recipe.world.written(data) for data in inputs(recipe)]
    return [Case(*pair) for pair in zip(written, answers(recipe), strict=True)]


def question(recipe: Recipe) -> str:
    """Return the statement without examples."""
    *steps, final = (op.sentence.format(n=argument) for op, argument in recipe.operations)
    lines = [
        f"Write a Python program that reads from its standard input {recipe.world.description}. It does the following, in this order:",
        *(f"{number}. {sentence}" for number, sentence in enumerate(steps, start=1)),
        f"Then {final}",
    ]
    return "\n".join(lines)


def program(recipe: Recipe) -> str:
    """Return a program that follows the recipe."""
    lines = [op.line.replace("{n}", str(argument)) for op, argument in recipe.operations]
    return "\n".join([*recipe.world.reads, *lines, "print(answer)", ""])


def is_sound(recipe: Recipe) -> bool:
    """Return whether the tests distinguish it from each recipe with one step less, and have at least three outputs."""
    right = answers(recipe)
    shorter = (answers(without) for without in _shortened(recipe))
    return len(set(right)) > 2 and all(other != right for other in shorter)


def mutants(recipe: Recipe) -> list[str]:
    """Return at most `MUTANTS` wrong solutions: each fails at least one hidden test, no two fail alike."""
    right = answers(recipe)
    rng = Random(f"mutants {recipe!r}")  # noqa: S311
    near = list(_near(recipe))
    rng.shuffle(near)
    by_output: dict[tuple[str, ...], str] = {}
    for wrong in near:
        output = answers(wrong)
        if output[PUBLIC:] != right[PUBLIC:]:
            by_output.setdefault(tuple(output), program(wrong))
    return list(by_output.values())[:MUTANTS]


def _shortened(recipe: Recipe) -> Iterator[Recipe]:
    for i in range(len(recipe.steps)):
        yield recipe.but(steps=recipe.steps[:i] + recipe.steps[i + 1 :])


def _near(recipe: Recipe) -> Iterator[Recipe]:
    """Yield the recipes that differ in one place."""
    yield from _shortened(recipe)
    steps = recipe.steps
    for i in range(len(steps) - 1):
        yield recipe.but(steps=(*steps[:i], steps[i + 1], steps[i], *steps[i + 2 :]))
    for i, choice in enumerate(steps):
        name = choice.partition(":")[0]
        for other in choices({name: recipe.world.steps[name]}):
            if other != choice:
                yield recipe.but(steps=(*steps[:i], other, *steps[i + 1 :]))
    for final in choices(recipe.world.finals):
        if final != recipe.final:
            yield recipe.but(final=final)


def names(steps: Sequence[str]) -> list[str]:
    """Return the names of steps, without arguments."""
    return [step.partition(":")[0] for step in steps]
