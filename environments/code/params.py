r"""Parameters of a task: a program that reads standard input and writes standard output.

    {"question": "Write a program that ...",
     "tests": [{"input": "3 4\n", "output": "7\n"}, ...],
     "public": 1, "time_limit_s": 4.0, "memory_mib": 256,
     "reference": "a, b = map(int, input().split())\nprint(a + b)\n",
     "mutants": ["print(7)\n"], "recipe": null}

The policy sees the first `public` tests; all tests must pass. `reference` solves the task (empty: it is not known whether it
can be solved), `mutants` are programs known to be wrong. A generated task has its `recipe`, from which all else follows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from environments.code import recipes
from environments.code.operations import choices
from environments.code.recipes import Recipe
from environments.code.rows import is_foreign, own_shape
from triforge.environments.kit import Strict, parse_model
from triforge.errors import InputError
from triforge.sandbox.cases import Case
from triforge.sandbox.limits import MIB, Limits
from triforge.types import Params

LONGEST_QUESTION: Final = 50_000
MAX_TESTS: Final = 200
WHERE: Final = "code params"


def _encodable(text: str) -> str:
    text.encode()  # a UnicodeEncodeError is a ValueError: pydantic names the field
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class TestParams(Strict):
    """One test."""

    __test__ = False  # pytest would take it for a class of tests
    input: Text
    output: Text


class ProgramParams(Strict):
    """A task; see the module's example."""

    question: Text = Field(min_length=1, max_length=LONGEST_QUESTION)
    tests: list[TestParams] = Field(min_length=1, max_length=MAX_TESTS)
    public: int = Field(default=0, ge=0)
    time_limit_s: float = Field(default=4.0, ge=0.1, le=60.0)
    memory_mib: int = Field(default=256, ge=64, le=4096)
    reference: Text = ""
    mutants: list[Text] = Field(default_factory=list, max_length=16)
    recipe: Recipe | None = None

    @property
    def instruction(self) -> str:
        """The question with its examples."""
        parts = [self.question.strip()]
        for test in self.tests[: self.public]:
            parts.append(
                f"Example input:\n{test.input.rstrip()}\nExample output:\n{test.output.rstrip()}"
            )
        return "\n\n".join(parts)

    @property
    def kind(self) -> str:
        return self.recipe.kind if self.recipe else "program"

    def cases(self) -> list[Case]:
        return [Case(test.input, test.output) for test in self.tests]

    def limits(self) -> Limits:
        """Return limits whose wall time has room for a busy machine."""
        seconds, memory = self.time_limit_s, self.memory_mib * MIB
        return Limits(cpu_s=seconds, wall_s=2.0 + 3.0 * seconds, memory_bytes=memory)


def read_params(params: Params) -> ProgramParams:
    """Read and check a task; a row of a foreign shape (rows.py) is converted first."""
    if is_foreign(params):
        params = own_shape(params)
    given = parse_model(ProgramParams, params, WHERE)
    if given.public > len(given.tests):
        raise InputError(
            f"{WHERE}: field public: given {given.public}, but there are {len(given.tests)} tests"
        )
    if given.recipe is not None and _follows_from(given.recipe) != given:
        raise InputError(
            f"{WHERE}: field recipe: the task does not follow from it; leave the recipe out to change a generated task"
        )
    return given


@lru_cache(maxsize=256)  # the rollouts of a group read the same task one after the other
def _follows_from(recipe: Recipe) -> ProgramParams:
    return params_of(checked(recipe))


def checked(recipe: Recipe) -> Recipe:
    """Return a recipe that makes a problem; an `InputError` names the fault of any other."""
    world, steps = recipe.world, list(recipe.steps)
    unknown = [step for step in steps if step not in choices(world.steps)]
    if unknown or recipe.final not in choices(world.finals):
        raise InputError(
            f"{WHERE}: field recipe: {recipe.kind} has no {', '.join(unknown) or recipe.final!r}; "
            f"steps are {', '.join(choices(world.steps))}, endings {', '.join(choices(world.finals))}"
        )
    if len(set(recipes.names(steps))) < len(steps):
        raise InputError(f"{WHERE}: field recipe: a step is named twice in {steps}")
    if recipe.whole and recipe not in recipe.parts():
        raise InputError(f"{WHERE}: field recipe: {steps} are no part of {list(recipe.whole)}")
    if not recipe.can_be_posed():
        raise InputError(
            f"{WHERE}: field recipe: in {steps} with {recipe.final!r} a step makes no difference; choose others"
        )
    return recipe


def params_of(recipe: Recipe) -> ProgramParams:
    """Return the task of a recipe."""
    return ProgramParams(
        question=recipes.question(recipe),
        tests=[TestParams(input=case.input, output=case.output) for case in recipes.cases(recipe)],
        public=recipes.PUBLIC,
        reference=recipes.program(recipe),
        mutants=recipes.mutants(recipe),
        recipe=recipe,
    )
