"""A recipe and what is cooked from it: the statement, the reference solution, tests, and wrong solutions.

    {"kind": "numbers", "steps": ["even", "add:2", "reverse"], "final": "list", "seed": 17}

Everything follows from the recipe. A recipe is sound when every step matters: without any one of them some test has
another answer. Wrong solutions are recipes that differ a little (a step left out, two swapped, another argument,
another ending) and answer at least one hidden test differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Final

from pydantic import Field

from environments.code.operations import WORLDS, Kind, World, choices, resolved
from triforge.environments.kit import Strict
from triforge.sandbox.cases import Case

PUBLIC: Final = 2
MUTANTS: Final = 3
MAX_STEPS: Final = 6
SIZES: Final = (5, 7, 0, 1, 4, 6, 9, 12)  # of the tests' data; the first two are shown


class Recipe(Strict):
    """What a problem is made of: choices of `operations`, at most one of a name, and the seed of its tests."""

    kind: Kind
    steps: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_STEPS, strict=False)]
    final: str
    seed: int = Field(ge=0, lt=2**31)

    @property
    def world(self) -> World:
        return WORLDS[self.kind]

    def but(self, *, steps: tuple[str, ...] | None = None, final: str | None = None) -> Recipe:
        """The same with other steps or another ending."""
        changed = {"steps": self.steps if steps is None else steps, "final": final or self.final}
        return self.model_copy(update=changed)

    def can_be_posed(self) -> bool:
        """Whether it is sound and can be told wrong, so that a problem can be made of it."""
        return is_sound(self) and bool(mutants(self))


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
    rng = Random(f"mutants {recipe!r}")  # noqa: S311
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
        yield recipe.but(steps=recipe.steps[:i] + recipe.steps[i + 1 :])


def _near(recipe: Recipe) -> Iterator[Recipe]:
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
    """Their names, without arguments."""
    return [step.partition(":")[0] for step in steps]


_KINDS: Final[dict[str, Kind]] = {
    r"a list of whole numbers\b": "numbers",
    r"some words\b": "words",
    r"a picture\b": "grid",
}
_STEPS: Final[dict[Kind, dict[str, str]]] = {
    "numbers": {
        r"keep only the even": "even", r"keep only the odd": "odd", r"reverse": "reverse", r"sort .* small to large": "sort",
        r"of equal numbers": "unique", r"add (\d+) to": "add", r"drop the multiples of (\d+)": "drop_multiples",
        r".*\bremainder when divided by (\d+), .* 0 and \1 - 1": "remainder", r"move the first number to the end": "shift",
        r".*\bby its square": "square", r".*\bdifferences of neighbours: each number minus the one before": "differences",
        r".*\bthe sum of all numbers up to": "totals",
    },
    "words": {
        r"reverse": "reverse", r"sort the words alphabetically": "sort", r"of equal words": "unique",
        r"write every word backwards": "backwards", r"drop the words with fewer than (\d+)": "drop_short",
        r"sort the words by their length, the shortest first": "by_length", r".*\bswap the first and the last letter": "first_last",
        r"delete the letters a, e, i, o and u": "no_vowels", r"keep the first word, the third": "every_other",
    },
    "grid": {
        r"mirror .*left becomes right": "mirror", r".*upside down": "flip", r"swap lines and columns": "transpose",
        r"replace every # by a \. and every \. by a #": "invert", r"let every # fall down": "fall",
        r"move the last line to the top": "down", r"move the last column to the front": "right",
        r"take away the first line": "crop",
    },
}  # fmt: skip
_FINALS: Final[dict[Kind, dict[str, str]]] = {
    "numbers": {
        r"the sum of the numbers": "sum", r"how many": "count", r"the largest": "largest", r"the numbers separated": "list",
        r"the first number minus the second": "alternating",
    },
    "words": {
        r"how many words": "count", r"how many letters": "letters", r"the words separated": "line",
        r"the first letters": "initials", r"the longest": "longest",
    },
    "grid": {
        r"how many # there are": "count", r"the picture": "picture", r"how many # stand in the first line": "first_line",
        r"how many groups": "regions", r"the size of the largest group": "largest",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Announced:
    """What a statement asks for."""

    kind: Kind
    steps: tuple[str, ...]
    final: str


def read_statement(text: str) -> Announced | None:
    """What a statement asks for, or None when it is not one of ours."""
    lines = [" ".join(line.lower().split()) for line in text.splitlines()]
    kinds = [kind for pattern, kind in _KINDS.items() if lines and re.search(pattern, lines[0])]
    finals = [line.removeprefix("then print ") for line in lines if line.startswith("then print ")]
    if len(kinds) != 1 or len(finals) != 1:
        return None
    kind = kinds[0]
    numbered = [found[1] for line in lines if (found := re.fullmatch(r"\d+\. (.*)", line))]
    steps = [_matched(_STEPS[kind], line) for line in numbered]
    final = _matched(_FINALS[kind], finals[0])
    if final is None or not all(steps):
        return None
    return Announced(kind, tuple(step for step in steps if step), final)


def _matched(table: dict[str, str], sentence: str) -> str | None:
    for pattern, name in table.items():
        if found := re.match(pattern, sentence):
            return f"{name}:{found[1]}" if found.groups() else name
    return None
