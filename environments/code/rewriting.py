"""Rewriting a generated problem: one step more or less, or another ending; and the proofs that the result is true.

Problems of others are written anew by the model (open_rewriting.py), functions of HumanEval stay as they are.

Everything that a rewriter may answer is cooked and compared beforehand. `check` then runs the programs in the sandbox:
the reference solution on every test, the wrong solutions, and, for what is announced, a solution written for the
statement as it is read back by a grammar of its own, with the statement's own examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from environments.code import open_rewriting, recipes
from environments.code.execution import prove, wait_for
from environments.code.operations import choices
from environments.code.params import (
    FunctionParams,
    ProgramParams,
    checked,
    instruction,
    kind_of,
    params_of,
    read_params,
)
from environments.code.recipes import MAX_STEPS, Announced, Recipe, read_statement
from triforge.errors import InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.sandbox.client import Sandbox
from triforge.types import CheckResult, Direction, Params, Task

FIELDS: Final = ("steps", "final")
_BETWEEN: Final = ", "
_EMPTY: Final = "pass"


def menu(task: Task, direction: Direction) -> RewriteMenu:
    """The closed choices of one direction; an open answer for a task that was not generated.

    harder: one step more, at the end or at the start; or an ending further down the table. easier: the reverse.
    """
    given = read_params(task.params)
    if isinstance(given, FunctionParams):
        return RewriteMenu(description=task.instruction)
    recipe = given.recipe
    if recipe is None:
        return open_rewriting.menu(given, direction)
    found = dict.fromkeys(
        (_BETWEEN.join(near.steps), near.final)
        for near in _near(recipe, direction)
        if near.can_be_posed()
    )
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
    given = read_params(task.params)
    if isinstance(given, FunctionParams):
        raise InputError(
            "code rewrite: a function with a check of its own is not rewritten; there is nothing to choose from"
        )
    recipe = given.recipe
    if recipe is None:
        return open_rewriting.apply(given, answer)
    if set(answer) != set(FIELDS):
        raise InputError(
            f"code rewrite: fields were {sorted(answer)}, expected exactly {', '.join(FIELDS)}"
        )
    steps = tuple(answer["steps"].split(_BETWEEN))
    if len(steps) > MAX_STEPS:
        raise InputError(f"code rewrite: field steps: {len(steps)} steps, at most {MAX_STEPS}")
    made = params_of(checked(recipe.but(steps=steps, final=answer["final"])))
    return TaskDraft(
        params=made.model_dump(mode="json"), instruction=instruction(made), kind=kind_of(made)
    )


def drift(root: Params, candidate: Params) -> float:
    """How many steps and endings must change, as a share of all; between problems of others, words of the question."""
    if root == candidate:
        return 0.0
    one, two = read_params(root), read_params(candidate)
    if isinstance(one, FunctionParams) or isinstance(two, FunctionParams):
        return 1.0
    before, after = one.recipe, two.recipe
    if before is None and after is None:
        return open_rewriting.drift(one, two)
    if before is None or after is None or before.kind != after.kind:
        return 1.0
    first, second = (*before.steps, before.final), (*after.steps, after.final)
    return _edits(first, second) / max(len(first), len(second))


def check(sandbox: Sandbox, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
    """Prove a candidate. The programs are run; nothing is taken on trust."""
    try:
        before, after = read_params(parent.params), read_params(candidate.params)
    except InputError as error:
        return [CheckResult(name="well_formed", passed=False, detail=error.detail)]
    if isinstance(before, FunctionParams) or isinstance(after, FunctionParams):
        detail = "a function with a check of its own is not rewritten"
        return [CheckResult(name="well_formed", passed=False, detail=detail)]
    if before.recipe is None:
        return wait_for(open_rewriting.check(sandbox, before, after, candidate.instruction))
    if after.recipe is None:
        detail = "a generated problem stays one: it has a recipe"
        return [CheckResult(name="well_formed", passed=False, detail=detail)]
    announced = read_statement(candidate.instruction)
    others = [_EMPTY, *([_solution(announced)] if announced else [])]
    trouble, counts = wait_for(prove(sandbox, after, others))
    agrees, detail = _agrees(after, candidate.instruction, announced, counts[1:])
    results = (
        ("well_formed", True, ""),
        ("differs", before.tests != after.tests and before != after, ""),
        ("not_satisfied_at_reset", counts[0] < len(after.tests), "an empty program"),
        ("solvable", not trouble, trouble),
        ("instruction_agrees", agrees, detail),
    )
    return [CheckResult(name=name, passed=ok, detail=said) for name, ok, said in results]


def _solution(announced: Announced) -> str:
    return recipes.program(
        Recipe(kind=announced.kind, steps=announced.steps, final=announced.final, seed=0)
    )


def _agrees(
    task: ProgramParams, text: str, announced: Announced | None, passes: list[int]
) -> tuple[bool, str]:
    """Whether who does what the statement says passes every test; `passes` counts those of such a program."""
    if announced is None:
        return False, "the statement announces nothing that can be read back"
    assert task.recipe is not None
    rewarded = Announced(task.recipe.kind, task.recipe.steps, task.recipe.final)
    detail = (
        f"a solution of the statement as announced passes {passes[0]} of {len(task.tests)} tests"
    )
    if announced != rewarded:
        return False, f"it announces {announced}, its tests ask for {rewarded}; {detail}"
    if text != instruction(task):
        return False, "its examples are not those of the tests"
    return passes[0] == len(task.tests), detail


def _near(recipe: Recipe, direction: Direction) -> Iterator[Recipe]:
    steps, table = recipe.steps, choices(recipe.world.steps)
    finals = choices(recipe.world.finals)
    rank = finals.index(recipe.final)
    for final in finals[rank + 1 :] if direction == "harder" else finals[:rank]:
        yield recipe.but(final=final)
    if direction == "easier":
        for i in range(len(steps)) if len(steps) > 1 else ():
            yield recipe.but(steps=steps[:i] + steps[i + 1 :])
        return
    for step in table if len(steps) < MAX_STEPS else ():
        if step.partition(":")[0] not in recipes.names(steps):
            yield recipe.but(steps=(*steps, step))
            yield recipe.but(steps=(step, *steps))


def _edits(one: tuple[str, ...], two: tuple[str, ...]) -> int:
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, start=1):
        last, row[0] = row[0], i
        for j, b in enumerate(two, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]
