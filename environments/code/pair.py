"""Two agents on one problem: each turn a tester writes a test for it, then a coder a program; hidden tests decide.

What a step is worth for its agent alone is that of Stronger-MAS (arXiv 2510.11062): for the tester 0.2 for a test and 0.8 if the
reference solution passes it; for the coder 0.1 if the program builds, 0.1 if it runs, and 0.8 times the share of hidden tests.
"""

from __future__ import annotations

from copy import copy
from typing import Final, Self

from environments.code.episode import GUIDE, Code
from environments.code.execution import program_in
from environments.code.params import ProgramParams
from triforge.errors import EnvError
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.sandbox.cases import CASE_FORM, Case, Verdict, read_case, run_case, run_cases
from triforge.types import Task

_TESTER: Final = """You are the tester. Write one test for this problem, small, and of a mistake that programs may make here:

{problem}

{said}{form}"""
_CODER: Final = "You are the coder.\n\n{problem}\n\n{said}\n\n" + GUIDE
_UNBUILT: Final = ("SyntaxError", "IndentationError", "TabError")


class Pair(Code):
    """One problem for two; the episode ends when a program passes the test of its turn, or after the last turn."""

    _case: Case | None = None
    _coding = False
    _problem = ""

    async def reset(self, task: Task, *, seed: int) -> Reset:
        await super().reset(task, seed=seed)
        if not isinstance(self._task, ProgramParams):
            error = EnvError(
                f"code: task {task.id} is a function, expected a program with input and output: a pair tests what a program prints"
            )
            error.retryable = False
            raise error
        self._problem = task.instruction
        return Reset(observation=self._ask("tester", ""))

    async def fork(self) -> Self:
        """Whatever changes is replaced, so a shallow copy goes its own way."""
        return copy(self)

    async def step(self, response: str) -> StepResult:
        task = self._task
        if not isinstance(task, ProgramParams) or self._left == 0:
            raise EnvError("code: step after the end or before reset; the episode is not running")
        self._coding = not self._coding
        return await (
            self._write_test(task, response)
            if self._coding
            else self._write_program(task, response)
        )

    async def _write_test(self, task: ProgramParams, response: str) -> StepResult:
        case = self._case = read_case(response)
        right = case is not None and bool(task.reference)
        if case is not None and right:
            right = (await run_case(self._sandbox, task.reference, case, task.limits())).passed
        shown = (
            "The tester has written no test."
            if case is None
            else f"A tester's test:\n{_shown(case)}"
        )
        return StepResult(
            observation=self._ask("coder", shown),
            action="" if case is None else _shown(case),
            action_valid=case is not None,
            done=False,
            success=False,
            local=0.2 * (case is not None) + 0.8 * right,
        )

    async def _write_program(self, task: ProgramParams, response: str) -> StepResult:
        program, cases, verdicts = program_in(response), task.cases(), tuple[Verdict, ...]()
        agreed, said = False, "The coder has written no program."
        if program is not None:
            limits = task.limits()
            verdicts = await run_cases(
                self._sandbox, program, cases, limits, total_s=self._options.total_s
            )
            said = f"The coder's program:\n{program}"
            if self._case is not None:
                found = await run_case(self._sandbox, program, self._case, limits)
                agreed = found.passed
                said += f"\nOn your test it printed:\n{found.result.stdout.rstrip()[:1000]}"
        self._left -= 1
        share, over = sum(v.passed for v in verdicts) / len(cases), agreed or self._left == 0
        self._left = 0 if over else self._left
        return StepResult(
            observation=Observation(text="It is over.")
            if over
            else self._ask("tester", f"{said}\n\n"),
            action=program or "",
            action_valid=program is not None,
            done=over,
            success=share == 1.0,
            share=share if over else None,
            local=0.1 * _builds(verdicts) + 0.1 * _runs(verdicts) + 0.8 * share,
        )

    def _ask(self, agent: str, said: str) -> Observation:
        asks = _TESTER if agent == "tester" else _CODER
        text = asks.format(problem=self._problem, said=said, form=CASE_FORM)
        return Observation(text=text, agent_id=agent)


def _builds(verdicts: tuple[Verdict, ...]) -> bool:
    return bool(verdicts) and not any(
        line.startswith(_UNBUILT) for line in verdicts[0].result.stderr.splitlines()[-1:]
    )


def _runs(verdicts: tuple[Verdict, ...]) -> bool:
    return any(v.reason in ("right", "wrong") for v in verdicts)


def _shown(case: Case) -> str:
    return f"Input:\n{case.input.rstrip()[:1000]}\nExpected output:\n{case.output.rstrip()[:1000]}"
