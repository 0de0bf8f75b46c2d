"""Scores of programs: run on tests in the sandbox, or proved all at once.

`prove` runs our own programs on all tests in one process; programs of a model could see one another there.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from environments.code.params import ProgramParams
from triforge.errors import EnvError
from triforge.sandbox.cases import Case, Verdict, run_cases, same_output
from triforge.sandbox.client import Sandbox
from triforge.sandbox.limits import MIB, Limits

TOO_SLOW: Final = "too slow"
_WHY: Final = {
    "wrong": "wrong output", "error": "the program failed", "wall_time": TOO_SLOW,
    "cpu_time": TOO_SLOW, "memory": "too much memory", "output": "too much output",
}  # fmt: skip
T = TypeVar("T")
_FENCE: Final = re.compile(  # possessive: a fence that never ends its line is looked at once, not once a character
    r"^[ \t]*+```[ \t]*+(\w*+)[^\n]*+\n(.*?)^[ \t]*+```", re.MULTILINE | re.DOTALL
)
TOTAL_S: Final = 120.0
"""Processor seconds of one program over all tests, for which the default deadline of an episode has room."""
_PYTHON: Final = ("", "python", "py", "python3")


@dataclass(frozen=True, slots=True)
class Score:
    """The number of tests that a program passed (before the first failed one, where the rest were left out), and its fault."""

    passed: int
    tests: int
    trouble: str = ""

    @property
    def solved(self) -> bool:
        return self.passed == self.tests


def program_in(response: str) -> str | None:
    """Return the last fenced Python block of a response, or None when there is none."""
    blocks = [text for language, text in _FENCE.findall(response) if language.lower() in _PYTHON]
    return blocks[-1] if blocks else None


def fenced(program: str) -> str:
    """Return a response that holds a program."""
    return f"```python\n{program.rstrip()}\n```"


async def score(
    sandbox: Sandbox,
    task: ProgramParams,
    program: str,
    *,
    public: bool = False,
    every: bool = False,
    total_s: float = TOTAL_S,
) -> Score:
    """Run a program against a task.

    With `public`, only the public tests are run, and the fault shows the test; otherwise it shows nothing of a test. With `every`,
    it goes on after a failed test. Tests for which `total_s` (see `run_cases`) leaves no time are not passed.
    """
    cases = task.cases()[: task.public] if public else task.cases()
    verdicts = await run_cases(
        sandbox, program, cases, task.limits(), stop_at_first=not (public or every), total_s=total_s
    )
    trouble = _trouble(cases, verdicts, full=public)
    if not trouble and len(verdicts) < len(cases):
        trouble = TOO_SLOW  # no time is left for the others
    return Score(sum(v.passed for v in verdicts), len(cases), trouble)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in a thread of its own, for a synchronous caller."""
    with ThreadPoolExecutor(1, thread_name_prefix="code") as pool:
        return pool.submit(asyncio.run, work).result()


def _trouble(cases: Sequence[Case], verdicts: Sequence[Verdict], *, full: bool) -> str:
    for case, verdict in zip(cases, verdicts, strict=False):
        if verdict.passed:
            continue
        sentence = _WHY[verdict.reason]
        if not full:
            return sentence
        last = (
            (verdict.result.stderr.strip().splitlines() or [""])[-1]
            if verdict.reason == "error"
            else ""
        )
        parts = [
            f"{sentence}: {last[:300]}" if last else sentence,
            f"Input:\n{case.input.rstrip()[:1000]}",
            f"Expected output:\n{case.output.rstrip()[:1000]}",
            f"Your output:\n{verdict.result.stdout.rstrip()[:1000]}",
        ]
        return "\n".join(parts)
    return ""


_DRIVER: Final = """
import contextlib, io, json, sys
given = json.load(sys.stdin)
table = []
for source in given["programs"]:
    code = compile(source, "program", "exec")
    row = []
    for text in given["inputs"]:
        sys.stdin, out = io.StringIO(text), io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(code, {"__name__": "__main__"})
            row.append(out.getvalue())
        except Exception:
            row.append(None)
    table.append(row)
print(json.dumps(table))
"""
_PROOF_LIMITS: Final = Limits(cpu_s=20.0, wall_s=120.0, output_bytes=8 * MIB)


async def passed(
    sandbox: Sandbox, problem: ProgramParams, programs: Sequence[str]
) -> list[list[bool]]:
    """Return which tests of a problem each program passes. The programs must be our own."""
    asked = {"programs": list(programs), "inputs": [test.input for test in problem.tests]}
    result = await sandbox.run(_DRIVER, json.dumps(asked), _PROOF_LIMITS)
    if not result.ok:
        raise EnvError(f"code: a proof ended by {result.ended}: {result.stderr.strip()[-300:]}")
    expected = [test.output for test in problem.tests]
    return [
        [
            out is not None and same_output(out, want)
            for out, want in zip(row, expected, strict=True)
        ]
        for row in json.loads(result.stdout)
    ]


async def prove(
    sandbox: Sandbox, problem: ProgramParams, others: Sequence[str] = ()
) -> tuple[str, list[int]]:
    """Run the reference solution and the wrong ones of a generated problem on all its tests.

    Returns:
        The fault of the problem (empty when there is none), and how many tests each of `others` passes.
    """
    wrong = len(problem.mutants)
    table = await passed(sandbox, problem, [problem.reference, *problem.mutants, *others])
    reference, mutants = table[0], table[1 : 1 + wrong]
    trouble = ""
    if not all(reference):
        trouble = f"the reference solution passes {sum(reference)} of {len(reference)} tests"
    elif any(map(all, mutants)):
        trouble = "a wrong solution passes all tests"
    elif not mutants:
        trouble = "there is no wrong solution that fails"
    return trouble, [sum(row) for row in table[1 + wrong :]]
