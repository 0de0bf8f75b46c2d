"""What a program is worth: run on tests in the sandbox, or called by the check of a function."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from environments.code import functions
from environments.code.params import FunctionParams, ProgramParams
from triforge.sandbox.cases import Case, Verdict, run_cases
from triforge.sandbox.client import Sandbox

T = TypeVar("T")
_FENCE: Final = re.compile(  # possessive: a fence that never ends its line is looked at once, not once a character
    r"^[ \t]*+```[ \t]*+(\w*+)[^\n]*+\n(.*?)^[ \t]*+```", re.MULTILINE | re.DOTALL
)
TOTAL_S: Final = 120.0
"""Processor seconds of one program over all tests: what the default deadline of an episode has room for."""
_PYTHON: Final = ("", "python", "py", "python3")


@dataclass(frozen=True, slots=True)
class Score:
    """How many tests a program passed (before the first it did not, where the rest were left out), and what was wrong."""

    passed: int
    tests: int
    trouble: str = ""

    @property
    def solved(self) -> bool:
        """Whether it passed all of them."""
        return self.passed == self.tests


def program_in(response: str) -> str | None:
    """The last fenced Python block of a response, or None when there is none."""
    blocks = [text for language, text in _FENCE.findall(response) if language.lower() in _PYTHON]
    return blocks[-1] if blocks else None


def fenced(program: str) -> str:
    """A program as a response that holds it."""
    return f"```python\n{program.rstrip()}\n```"


async def score(
    sandbox: Sandbox,
    task: ProgramParams | FunctionParams,
    program: str,
    *,
    public: bool = False,
    every: bool = False,
    total_s: float = TOTAL_S,
) -> Score:
    """Run a program against a task.

    Args:
        sandbox: where.
        task: its tests.
        program: source text.
        public: run the public tests only, and say in full what went wrong; otherwise nothing of a test is told.
        every: go on after a test that is not passed.
        total_s: see `run_cases`; what it leaves no time for is not passed.
    """
    if isinstance(task, FunctionParams) and public:
        return Score(0, 0)  # a check has no public part
    if isinstance(task, FunctionParams):
        trouble = await functions.check(sandbox, task, program)
        return Score(0 if trouble else 1, 1, trouble)
    cases = task.cases()[: task.public] if public else task.cases()
    verdicts = await run_cases(
        sandbox, program, cases, task.limits(), stop_at_first=not (public or every), total_s=total_s
    )
    trouble = _trouble(cases, verdicts, told=public)
    if not trouble and len(verdicts) < len(cases):
        trouble = TOO_SLOW  # all that were run are passed, and nothing is left for the others
    return Score(sum(v.passed for v in verdicts), len(cases), trouble)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end for a caller without an event loop, or one that stands in the way of its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="code") as pool:
        return pool.submit(asyncio.run, work).result()


TOO_SLOW: Final = "too slow"
_WHY: Final = {
    "wrong": "wrong output",
    "error": "the program failed",
    "wall_time": TOO_SLOW,
    "cpu_time": TOO_SLOW,
    "memory": "too much memory",
    "output": "too much output",
}


def _trouble(cases: Sequence[Case], verdicts: Sequence[Verdict], *, told: bool) -> str:
    for case, verdict in zip(cases, verdicts, strict=False):
        if verdict.passed:
            continue
        sentence = _WHY[verdict.reason]
        if not told:
            return sentence
        said = verdict.result.stderr.strip().splitlines()[-1:] if verdict.reason == "error" else []
        parts = [
            f"{sentence}: {said[0][:300]}" if said else sentence,
            f"Input:\n{case.input.rstrip()[:1000]}",
            f"Expected output:\n{case.output.rstrip()[:1000]}",
            f"Your output:\n{verdict.result.stdout.rstrip()[:1000]}",
        ]
        return "\n".join(parts)
    return ""
