r"""A task's parameters, in one of two shapes. Whoever runs programs against a task reads them by these models.

A program that reads standard input and writes standard output:

    {"question": "Write a program that ...",
     "tests": [{"input": "3 4\n", "output": "7\n"}, ...],
     "public": 1, "time_limit_s": 4.0, "memory_mib": 256,
     "reference": "a, b = map(int, input().split())\nprint(a + b)\n",
     "mutants": ["print(7)\n"], "recipe": null}

The first `public` tests are examples that the policy sees; all of them must pass. `reference` solves the task (empty: nobody
knows whether it can be solved), `mutants` are programs known to be wrong. A generated task has its `recipe`; then
everything else must be what follows from it.

A function, checked by Python code (HumanEval):

    {"name": "HumanEval/0", "prompt": "def f(...): ...", "entry_point": "f", "check": "def check(candidate): ...",
     "reference": "    return ...", "time_limit_s": 4.0}
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from environments.code import recipes
from environments.code.operations import Kind, choices
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
Seconds = Annotated[float, Field(ge=0.1, le=60.0)]


class TestParams(Strict):
    """One test."""

    __test__ = False  # pytest would take it for a class of tests
    input: Text
    output: Text


class ProgramParams(Strict):
    """A task that is solved by a program with input and output; see the module's example."""

    question: Text = Field(min_length=1, max_length=LONGEST_QUESTION)
    tests: list[TestParams] = Field(min_length=1, max_length=MAX_TESTS)
    public: int = Field(default=0, ge=0)
    time_limit_s: Seconds = 4.0
    memory_mib: int = Field(default=256, ge=64, le=4096)
    reference: Text = ""
    mutants: list[Text] = Field(default_factory=list, max_length=16)
    recipe: Recipe | None = None

    def cases(self) -> list[Case]:
        return [Case(test.input, test.output) for test in self.tests]

    def limits(self) -> Limits:
        """What one run may use; the wall has room for a machine that is busy."""
        return _limits(self.time_limit_s, self.memory_mib)


class FunctionParams(Strict):
    """A task that is solved by a function; see the module's example."""

    name: Text = Field(min_length=1, max_length=200)
    prompt: Text = Field(min_length=1, max_length=LONGEST_QUESTION)
    entry_point: str = Field(pattern=r"^[A-Za-z_]\w{0,99}$")
    check: Text = Field(min_length=1)
    reference: Text = Field(min_length=1)
    time_limit_s: Seconds = 4.0

    def limits(self) -> Limits:
        """What one run may use; it calls the function in all tests."""
        return _limits(self.time_limit_s, 512)


def _limits(seconds: float, memory_mib: int) -> Limits:
    return Limits(cpu_s=seconds, wall_s=2.0 + 3.0 * seconds, memory_bytes=memory_mib * MIB)


def read_params(params: Params) -> ProgramParams | FunctionParams:
    """Read and check a task; a row of a foreign shape (see rows.py) is turned into ours first."""
    if is_foreign(params):
        params = own_shape(params)
    if "check" in params:
        return parse_model(FunctionParams, params, WHERE)
    given = parse_model(ProgramParams, params, WHERE)
    if given.public > len(given.tests):
        raise InputError(
            f"{WHERE}: field public: was {given.public}, but there are {len(given.tests)} tests"
        )
    if given.recipe is not None and _follows_from(given.recipe) != given:
        raise InputError(
            f"{WHERE}: field recipe: the task is not what follows from it; leave the recipe out to change a generated task"
        )
    return given


@lru_cache(maxsize=256)  # the rollouts of a group read the same task one after the other
def _follows_from(recipe: Recipe) -> ProgramParams:
    return params_of(checked(recipe))


def checked(recipe: Recipe) -> Recipe:
    """A recipe of which a problem can be made; an `InputError` names what is wrong with another."""
    world = recipe.world
    unknown = [step for step in recipe.steps if step not in choices(world.steps)]
    if unknown or recipe.final not in choices(world.finals):
        raise InputError(
            f"{WHERE}: field recipe: {recipe.kind} has no {', '.join(unknown) or recipe.final!r}; "
            f"steps are {', '.join(choices(world.steps))}, endings {', '.join(choices(world.finals))}"
        )
    steps = list(recipe.steps)
    if len(set(recipes.names(steps))) < len(steps):
        raise InputError(f"{WHERE}: field recipe: a step is named twice in {steps}")
    if not recipe.can_be_posed():
        raise InputError(
            f"{WHERE}: field recipe: in {steps} with {recipe.final!r} a step makes no difference; choose others"
        )
    return recipe


def params_of(recipe: Recipe) -> ProgramParams:
    """The task of a recipe."""
    return ProgramParams(
        question=recipes.question(recipe),
        tests=[TestParams(input=case.input, output=case.output) for case in recipes.cases(recipe)],
        public=recipes.PUBLIC,
        reference=recipes.program(recipe),
        mutants=recipes.mutants(recipe),
        recipe=recipe,
    )


def instruction(given: ProgramParams | FunctionParams) -> str:
    """What is announced: the question with its examples, or the function to complete."""
    if isinstance(given, FunctionParams):
        return f"Write this Python function, complete and with the imports it needs.\n\n{given.prompt.strip()}"
    parts = [given.question.strip()]
    for test in given.tests[: given.public]:
        parts.append(
            f"Example input:\n{test.input.rstrip()}\nExample output:\n{test.output.rstrip()}"
        )
    return "\n\n".join(parts)


def kind_of(given: ProgramParams | FunctionParams) -> Literal["function", "program"] | Kind:
    """The family's word for tasks of this sort."""
    if isinstance(given, FunctionParams):
        return "function"
    return given.recipe.kind if given.recipe else "program"
