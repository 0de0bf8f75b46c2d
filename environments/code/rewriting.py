"""Rewriting a generated problem: one step more or less, or another ending; and the proofs that the result is true.

Everything that a rewriter may answer is cooked and compared beforehand. `check` then runs the programs in the sandbox:
the reference solution on every test, the wrong solutions, and, for what is announced, a solution written for the
statement as it is read back by a grammar of its own, with the statement's own examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from environments.code import recipes
from environments.code.execution import prove, wait_for
from environments.code.operations import choices
from environments.code.params import (
    MAX_STEPS,
    ProgramParams,
    RecipeParams,
    instruction,
    kind_of,
    params_of,
    read_params,
    recipe_of,
)
from environments.code.recipes import Announced, Recipe, read_statement
from triforge.errors import InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.sandbox.client import Sandbox
from triforge.types import CheckResult, Direction, Params, Task

FIELDS: Final = ("steps", "final")
_BETWEEN: Final = ", "
_EMPTY: Final = "pass"


def menu(task: Task, direction: Direction) -> RewriteMenu:
    """The closed choices of one direction; empty for a task that was not generated.

    harder: one step more, at the end or at the start; or an ending further down the table. easier: the reverse.
    """
    recipe = _recipe(task.params)
    if recipe is None:
        return RewriteMenu(description=task.instruction)
    found = {_answer(near): None for near in _near(recipe, direction) if _holds(near)}
    combinations = tuple(dict(zip(FIELDS, answer, strict=True)) for answer in found)
    fields = {
        name: tuple(dict.fromkeys(answer[name] for answer in combinations)) for name in FIELDS
    }
    return RewriteMenu(
        description=(
            f"Present problem:\n{recipes.question(recipe)}\n"
            f"As steps: {_BETWEEN.join(recipe.steps)}; ending: {recipe.final}."
        ),
        fields=fields if combinations else {},
        combinations=combinations,
    )


def apply(task: Task, answer: dict[str, str]) -> TaskDraft:
    """The problem that follows from an answer: same kind, same data, new steps or ending, everything written anew."""
    recipe = _recipe(task.params)
    if recipe is None:
        raise InputError(
            "code rewrite: this problem was not generated, so there is nothing to choose from"
        )
    if set(answer) != set(FIELDS):
        raise InputError(
            f"code rewrite: fields were {sorted(answer)}, expected exactly {', '.join(FIELDS)}"
        )
    steps = tuple(answer["steps"].split(_BETWEEN))
    if len(steps) > MAX_STEPS:
        raise InputError(f"code rewrite: field steps: {len(steps)} steps, at most {MAX_STEPS}")
    return draft(_checked(replace(recipe, steps=steps, final=answer["final"])))


def draft(given: ProgramParams) -> TaskDraft:
    """A task as it is stored."""
    return TaskDraft(
        params=given.model_dump(mode="json"), instruction=instruction(given), kind=kind_of(given)
    )


def drift(root: Params, candidate: Params) -> float:
    """How many steps and endings must change, as a share of all; 1 between tasks of which one was not generated."""
    before, after = _recipe(root), _recipe(candidate)
    if root == candidate:
        return 0.0
    if before is None or after is None or before.kind != after.kind:
        return 1.0
    one, two = (*before.steps, before.final), (*after.steps, after.final)
    return _edits(one, two) / max(len(one), len(two))


def check(sandbox: Sandbox, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
    """Prove a candidate. The programs are run; nothing is taken on trust."""
    try:
        before, after = read_params(parent.params), read_params(candidate.params)
    except InputError as error:
        return [CheckResult(name="well_formed", passed=False, detail=error.detail)]
    if (
        not isinstance(before, ProgramParams)
        or not isinstance(after, ProgramParams)
        or not after.recipe
    ):
        detail = "only generated problems are rewritten"
        return [CheckResult(name="well_formed", passed=False, detail=detail)]
    assert after.recipe is not None
    announced = read_statement(candidate.instruction)
    others = [_EMPTY, *([_solution(announced)] if announced else [])]
    trouble, counts = wait_for(prove(sandbox, after, others))
    agrees, detail = _agrees(after, candidate.instruction, announced, counts[1:])
    return [
        CheckResult(name="well_formed", passed=True),
        CheckResult(name="differs", passed=before.tests != after.tests and before != after),
        CheckResult(
            name="not_satisfied_at_reset",
            passed=counts[0] < len(after.tests),
            detail="an empty program",
        ),
        CheckResult(name="solvable", passed=not trouble, detail=trouble),
        CheckResult(name="instruction_agrees", passed=agrees, detail=detail),
    ]


def _solution(announced: Announced) -> str:
    return recipes.program(Recipe(announced.kind, announced.steps, announced.final, 0))


def _agrees(
    task: ProgramParams, text: str, announced: Announced | None, passes: list[int]
) -> tuple[bool, str]:
    """Whether who does what the statement says passes every test; `passes` counts those of such a program."""
    if announced is None:
        return False, "the statement announces nothing that can be read back"
    assert task.recipe is not None
    rewarded = Announced(task.recipe.kind, tuple(task.recipe.steps), task.recipe.final)
    detail = (
        f"a solution of the statement as announced passes {passes[0]} of {len(task.tests)} tests"
    )
    if announced != rewarded:
        return False, f"it announces {announced}, its tests ask for {rewarded}; {detail}"
    if text != instruction(task):
        return False, "its examples are not those of the tests"
    return passes[0] == len(task.tests), detail


def _recipe(params: Params) -> Recipe | None:
    given = read_params(params)
    return recipe_of(given.recipe) if isinstance(given, ProgramParams) and given.recipe else None


def _checked(recipe: Recipe) -> ProgramParams:
    given = RecipeParams(
        kind=recipe.kind, steps=list(recipe.steps), final=recipe.final, seed=recipe.seed
    )
    return params_of(recipe_of(given))


def _near(recipe: Recipe, direction: Direction) -> Iterator[Recipe]:
    steps, table = recipe.steps, choices(recipe.world.steps)
    finals = choices(recipe.world.finals)
    rank = finals.index(recipe.final)
    for final in finals[rank + 1 :] if direction == "harder" else finals[:rank]:
        yield replace(recipe, final=final)
    if direction == "easier":
        for i in range(len(steps)) if len(steps) > 1 else ():
            yield replace(recipe, steps=steps[:i] + steps[i + 1 :])
        return
    for step in table if len(steps) < MAX_STEPS else ():
        if step.partition(":")[0] not in recipes.names(steps):
            yield replace(recipe, steps=(*steps, step))
            yield replace(recipe, steps=(step, *steps))


def _holds(recipe: Recipe) -> bool:
    return recipes.is_sound(recipe) and bool(recipes.mutants(recipe))


def _answer(recipe: Recipe) -> tuple[str, str]:
    return _BETWEEN.join(recipe.steps), recipe.final


def _edits(one: tuple[str, ...], two: tuple[str, ...]) -> int:
    """Levenshtein's distance."""
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, start=1):
        last, row[0] = row[0], i
        for j, b in enumerate(two, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]
