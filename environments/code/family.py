"""Writing programs as an environment family."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Annotated, Final

from pydantic import Field, JsonValue

from environments.code import rewriting
from environments.code.execution import (
    TOO_SLOW,
    TOTAL_S,
    fenced,
    program_in,
    prove,
    score,
    wait_for,
)
from environments.code.operations import WORLDS, Kind, choices
from environments.code.params import WHERE, ProgramParams, params_of, read_params
from environments.code.recipes import MAX_STEPS, Recipe, names
from triforge.environments.kit import ORDERED, Family, Strict, parse_model, same_words
from triforge.environments.registry import About
from triforge.errors import EnvError, InputError
from triforge.event_loop import together
from triforge.rollout.protocols import Observation, Reset, RewriteMenu, StepResult, TaskDraft
from triforge.sandbox.client import Sandbox, shared
from triforge.types import CheckResult, Direction, Params, ProgramLimits, Task

GUIDE: Final = (
    "Think first, then write the whole program in Python 3 in one block that begins with ```python and ends with ```. "
    "The last such block of your answer counts. Only the standard library is there."
)
_NO_PROGRAM: Final = "There is no block of Python in your answer."


class PlayOptions(Strict):
    """Options of a run; README.md explains each."""

    turns: int = Field(default=1, ge=1, le=20)
    every_test: bool = True
    total_s: float = Field(default=TOTAL_S, ge=1.0, le=3600.0)
    guide: bool = True


class Code:
    """One problem."""

    def __init__(
        self, problem: ProgramParams, options: PlayOptions, announced: str, sandbox: Sandbox
    ) -> None:
        self.done = False
        self._problem, self._options, self._announced = problem, options, announced
        self._sandbox = sandbox
        self._left = options.turns

    def start(self) -> Reset:
        system = GUIDE if self._options.guide else ""
        return Reset(observation=Observation(text=self._announced), system=system)

    async def play(self, response: str) -> StepResult:
        program = program_in(response)
        share, text, over = 0.0, _NO_PROGRAM, self._left == 1
        if program is not None:
            share, text, over = await self._judge(program)
        self._left -= 1
        self.done = over
        return StepResult(
            observation=Observation(text=text),
            action=program or "",
            action_valid=program is not None,
            done=over,
            success=share == 1.0,
            share=share if over else None,
        )

    async def _judge(self, program: str) -> tuple[float, str, bool]:
        """Return the share of tests that the program passes, the text for the policy, and whether the episode is over."""
        if self._left > 1:
            shown = await score(self._sandbox, self._problem, program, public=True)
            if not shown.solved:
                text = f"{shown.passed} of {shown.tests} examples are right. {shown.trouble}"
                return 0.0, text, False
        every, total = self._options.every_test, self._options.total_s
        result = await score(self._sandbox, self._problem, program, every=every, total_s=total)
        if result.solved:
            return 1.0, "All tests are passed.", True
        share = result.passed / result.tests if every else 0.0
        return share, f"A test is not passed: {result.trouble}.", True


_DRAWS: Final = 200  # of recipes for one problem, until one is sound

Span = Annotated[
    list[Annotated[int, Field(ge=1, le=MAX_STEPS)]], Field(min_length=2, max_length=2), ORDERED
]


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    kinds: list[Kind] = Field(default_factory=lambda: list(WORLDS), min_length=1)
    steps: Span = Field(default_factory=lambda: [1, 3])
    proved: bool = True


class CodeFamily(Family[ProgramParams, PlayOptions]):
    """The family `code`; README.md explains it."""

    name = "code"
    about = About(
        what="writing programs: hidden tests decide, in a sandbox",
        tasks="generated, three kinds; JSONL in the shapes of CodeContests, LiveCodeBench, LiveBench",
        licence="Apache-2.0 (own)",
        programs=(("bwrap", "bubblewrap"),),
        papers="RLAnything (there: CodeContests)",
        steps_per_s=6,
    )
    play_options = PlayOptions
    never_blocks = (
        True  # an episode awaits its programs; a thread reads recipes, which takes milliseconds
    )
    blocks = ThreadPoolExecutor(1, thread_name_prefix="code-reading")
    measured = ("instruction_agrees",)  # of problems of others; generated ones prove it

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._own = sandbox

    @property
    def sandbox(self) -> Sandbox:
        return self._own or shared()

    def read(self, params: Params) -> ProgramParams:
        return read_params(params)

    def instruction(self, given: ProgramParams) -> str:
        return given.instruction

    def kind(self, given: ProgramParams) -> str:
        return given.kind

    def asks(self, draft: TaskDraft, options: Params) -> str:  # noqa: ARG002
        """Return the question, without the tests and a reference that rows have with it."""
        return same_words(str(draft.params["question"]))

    def check(self, given: ProgramParams) -> None:
        """Run a reference solution that comes with a problem, and refuse a task that it does not solve."""
        if why := wait_for(self._unsolved(given)):
            raise InputError(f"{WHERE}: field reference: {why}")

    async def _unsolved(self, given: ProgramParams) -> str:
        """Return the fault of a reference solution that has not been checked yet; empty when there is none."""
        if given.recipe is not None or not given.reference:
            return ""
        result = await score(self.sandbox, given, given.reference)
        if result.solved:
            return ""
        why = result.trouble
        if why == TOO_SLOW:
            why += f" (time_limit_s is {given.time_limit_s:g} s a test, and all tests together have {TOTAL_S:g} s)"
        return f"it does not pass test {result.passed + 1} of {result.tests}: {why}"

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Make problems, proved in the sandbox; problem i depends on seed, i and options only."""
        wanted = parse_model(GeneratorOptions, options, "code generate")
        drawn = [params_of(_draw(wanted, seed, index)) for index in range(count)]
        if wanted.proved:
            for trouble, _ in wait_for(together(prove(self.sandbox, one) for one in drawn)):
                if trouble:
                    raise EnvError(f"code: a generated problem does not hold: {trouble}")
        return [self.write(problem) for problem in drawn]

    def begin(self, given: ProgramParams, options: PlayOptions, announced: str, _seed: int) -> Code:
        return Code(given, options, announced, self.sandbox)

    def solution(self, given: ProgramParams, options: PlayOptions) -> Sequence[str] | None:  # noqa: ARG002
        return [fenced(given.reference)] if given.reference else None

    def program_limits(self, task: Task) -> ProgramLimits:
        """Return the limits of a program of the task."""
        limits = read_params(task.params).limits()
        return ProgramLimits(
            cpu_s=limits.cpu_s, wall_s=limits.wall_s, memory_bytes=limits.memory_bytes
        )

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        return rewriting.menu(read_params(task.params), direction)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        return self.draft(rewriting.apply(read_params(task.params), answer))

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        return rewriting.check(self.sandbox, parent, candidate)

    drift = staticmethod(rewriting.drift)

    def at_level(self, level: int, options: Params) -> Params:
        """Return the options for problems of `level + 1` steps."""
        steps: list[JsonValue] = [level + 1, level + 1]
        return {**options, "steps": steps}


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


FAMILY: Final = CodeFamily()
