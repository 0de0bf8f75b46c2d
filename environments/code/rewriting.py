"""Rewriting a generated problem: one step more or less, or another ending, and the proofs of the result.

A model writes other problems anew (open_rewriting.py). All answers about a generated problem are made and compared beforehand;
`check` then runs the reference solution and the wrong solutions in the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from environments.code import open_rewriting, recipes
from environments.code.execution import prove, wait_for
from environments.code.operations import choices
from environments.code.params import ProgramParams, checked, params_of, read_params
from environments.code.recipes import MAX_STEPS, Recipe
from triforge.environments.kit import closed_menu, expect_fields, proofs
from triforge.errors import InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.sandbox.client import Sandbox
from triforge.types import CheckResult, Direction, Params, Task

FIELDS: Final = ("steps", "final")
_BETWEEN: Final = ", "
_EMPTY: Final = "pass"


def menu(given: ProgramParams, direction: Direction) -> RewriteMenu:
    """Return the closed choices of one direction; the schema of an open answer for a problem that was not generated.

    harder: one step more, at the end or at the start; or an ending further down the table. easier: the reverse, or a part of the
    problem: neighbouring steps of it. A part gets one step of the whole problem more, or fewer.
    """
    recipe = given.recipe
    if recipe is None:
        return open_rewriting.menu(given, direction)
    near = [one for one in _near(recipe, direction) if one.can_be_posed()]
    answers = dict.fromkeys((_BETWEEN.join(one.steps), one.final) for one in near)
    return closed_menu(
        f"Present problem:\n{recipes.question(recipe)}\n"
        f"As steps: {_BETWEEN.join(recipe.steps)}; ending: {recipe.final}."
        + (f" They are a part of: {_BETWEEN.join(recipe.whole)}." if recipe.whole else ""),
        [dict(zip(FIELDS, answer, strict=True)) for answer in answers],
    )


def apply(given: ProgramParams, answer: dict[str, str]) -> ProgramParams:
    """Return the problem of an answer: same kind and data, new steps or ending, all else made anew."""
    if given.recipe is None:
        return open_rewriting.apply(given, answer)
    expect_fields(answer, FIELDS, "code rewrite")
    steps = tuple(answer["steps"].split(_BETWEEN))
    if len(steps) > MAX_STEPS:
        raise InputError(f"code rewrite: field steps: {len(steps)} steps, at most {MAX_STEPS}")
    other = given.recipe.but(steps=steps, final=answer["final"])
    parts = given.recipe.parts() if answer["final"] == given.recipe.final else ()
    return params_of(checked(next((one for one in parts if one.steps == steps), other)))


def drift(root: Params, candidate: Params) -> float:
    """Return the share of steps and endings that must change; between other problems, of the words of the questions."""
    if root == candidate:
        return 0.0
    one, two = read_params(root), read_params(candidate)
    before, after = one.recipe, two.recipe
    if before is None and after is None:
        return open_rewriting.drift(one, two)
    if before is None or after is None or before.kind != after.kind:
        return 1.0
    first, second = (*before.steps, before.final), (*after.steps, after.final)
    return _edits(first, second) / max(len(first), len(second))


def check(sandbox: Sandbox, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
    """Prove a candidate by running its programs."""
    try:
        before, after = read_params(parent.params), read_params(candidate.params)
    except InputError as error:
        return proofs(("well_formed", False, error.detail))
    if before.recipe is None:
        return wait_for(open_rewriting.check(sandbox, before, after, candidate.instruction))
    if after.recipe is None:
        return proofs(("well_formed", False, "a generated problem stays one: it has a recipe"))
    trouble, (empty,) = wait_for(prove(sandbox, after, [_EMPTY]))
    return proofs(
        ("well_formed", True),
        ("differs", before.tests != after.tests and before != after),
        ("not_satisfied_at_reset", empty < len(after.tests), "an empty program"),
        ("solvable", not trouble, trouble),
        ("instruction_agrees", candidate.instruction == after.instruction, "with the recipe"),
    )


def _near(recipe: Recipe, direction: Direction) -> Iterator[Recipe]:
    steps, table = recipe.steps, choices(recipe.world.steps)
    parts = [one for one in recipe.parts() if one.can_be_posed()]
    smaller = [one for one in parts if set(one.steps) < set(steps)]
    if recipe.whole:
        larger = [one for one in parts if set(steps) < set(one.steps)]
        least = min(len(one.steps) for one in larger)
        yield from (
            smaller if direction == "easier" else (one for one in larger if len(one.steps) == least)
        )
        return
    finals = choices(recipe.world.finals)
    rank = finals.index(recipe.final)
    for final in finals[rank + 1 :] if direction == "harder" else finals[:rank]:
        yield recipe.but(final=final)
    if direction == "easier":
        for i in range(len(steps)) if len(steps) > 1 else ():
            yield recipe.but(steps=steps[:i] + steps[i + 1 :])
        yield from smaller
        return
    for step in table if len(steps) < MAX_STEPS else ():
        if step.partition(":")[0] not in recipes.names(steps):
            yield recipe.but(steps=(*steps, step))
            yield recipe.but(steps=(step, *steps))


def _edits(one: tuple[str, ...], two: tuple[str, ...]) -> int:
    """Return the edit distance of two sequences."""
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, start=1):
        last, row[0] = row[0], i
        for j, b in enumerate(two, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]
