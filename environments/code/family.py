"""Writing programs as an environment family."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from environments.code import generator, rewriting
from environments.code.episode import Code, PlayOptions
from environments.code.execution import TOO_SLOW, TOTAL_S, fenced, score, wait_for
from environments.code.params import WHERE, ProgramParams, read_params
from triforge.environments.kit import Family
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.sandbox.client import Sandbox, shared
from triforge.types import CheckResult, Direction, Params, ProgramLimits, Task


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
        return generator.generate(self.sandbox, count=count, seed=seed, options=options)

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
    at_level = staticmethod(generator.at_level)


FAMILY: Final = CodeFamily()
