"""Scores of programs: run on tests in the sandbox, called by the check of a function, or proved all at once.

The check of a function is code, `def check(candidate)` with assertions. In one process with the check, a program could read it,
or end the process as if all were well. So three programs run, each in a sandbox of its own:

    1. the check with the reference solution, which records its calls     (once a task)
    2. the program, which answers these calls one by one
    3. the check, whose candidate returns the recorded answers

A check's calls must not depend on right answers (none of HumanEval's do), and arguments and results must be plain data.

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

from environments.code.params import FunctionParams, ProgramParams
from triforge.errors import EnvError
from triforge.sandbox.cases import Case, Verdict, run_cases, same_output
from triforge.sandbox.client import Sandbox
from triforge.sandbox.limits import MIB, Limits, RunResult

TOO_SLOW: Final = "too slow"
_WHY: Final = {
    "wrong": "wrong output", "error": "the program failed", "wall_time": TOO_SLOW,
    "cpu_time": TOO_SLOW, "memory": "too much memory", "output": "too much output",
}  # fmt: skip
_SEED: Final = "import random as _r\n_r.seed(0)\n"
_RECORD: Final = """
def _recording(solution, write=print):
    def candidate(*arguments, **named):
        write(repr((arguments, named)))
        return solution(*arguments, **named)
    return candidate
{seed}check(_recording({entry}))
"""
_ANSWER: Final = """
import ast as _ast, sys as _sys
_out, _sys.stdout = _sys.stdout, _sys.stderr
def _answers(entry):
    for line in _sys.stdin:
        arguments, named = _ast.literal_eval(line)
        try:
            result = repr((True, entry(*arguments, **named)))
        except Exception as error:
            result = repr((False, type(error).__name__))
        _out.write(result.replace("\\n", " ") + "\\n")
    _out.flush()
_answers({entry})
"""
_REPLAY: Final = """
def _replaying(calls, results):
    turn = iter(zip(calls, results, strict=True))
    def candidate(*arguments, **named):
        call, (returned, value) = next(turn)
        assert repr((arguments, named)) == call, "another call than was recorded"
        if not returned:
            raise RuntimeError(value)
        return value
    return candidate
import ast as _ast, sys as _sys
_lines = _sys.stdin.read().splitlines()
_half = int(_lines[0])
_calls = _lines[1 : 1 + _half]
try:
    _results = [_ast.literal_eval(line) for line in _lines[1 + _half :]]
    assert all(type(r) is tuple and len(r) == 2 for r in _results) and len(_results) == _half
except BaseException:
    raise SystemExit("a result is not plain data")
{seed}check(_replaying(_calls, _results))
print("passed")
"""

_recorded: dict[tuple[str, str, str], str] = {}
_KEPT: Final = 1000  # recordings; more are made anew


async def check_function(sandbox: Sandbox, task: FunctionParams, program: str) -> str:
    """Check a program that defines the function; return its fault, empty when there is none."""
    calls = await _calls(sandbox, task)
    source = f"{task.prompt}\n{program}\n" + _ANSWER.format(entry=task.entry_point)
    answered = await sandbox.run(source, calls, task.limits())
    if not answered.ok:
        return _why(answered)
    count = len(calls.splitlines())
    stdin = f"{count}\n{calls}{answered.stdout}"
    judged = await sandbox.run(_solved(task) + _REPLAY.format(seed=_SEED), stdin, task.limits())
    if judged.ok and judged.stdout.endswith("passed\n"):
        return ""
    return _why(judged) if judged.ended == "exit" else "the check did not end"


async def _calls(sandbox: Sandbox, task: FunctionParams) -> str:
    """Return the calls that the check makes, a line each."""
    key = (task.prompt, task.reference, task.check)
    if key not in _recorded:
        source = _solved(task) + _RECORD.format(seed=_SEED, entry=task.entry_point)
        made = await sandbox.run(source, "", task.limits())
        if not made.ok or not made.stdout:
            error = EnvError(
                f"code: the reference solution of {task.name} does not pass its own check: {_why(made)}"
            )
            error.retryable = False
            raise error
        if len(_recorded) >= _KEPT:
            _recorded.clear()
        _recorded[key] = made.stdout
    return _recorded[key]


def _solved(task: FunctionParams) -> str:
    return f"{task.prompt}{task.reference}\n{task.check}\n"


def _why(result: RunResult) -> str:
    if result.ended != "exit":
        return _WHY[result.ended]
    return _last_line(result)[:300] or "no output"


def _last_line(result: RunResult) -> str:
    return (result.stderr.strip().splitlines() or [""])[-1]


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
    task: ProgramParams | FunctionParams,
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
    if isinstance(task, FunctionParams) and public:
        return Score(0, 0)  # a check has no public part
    if isinstance(task, FunctionParams):
        trouble = await check_function(sandbox, task, program)
        return Score(0 if trouble else 1, 1, trouble)
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
        last = _last_line(verdict.result) if verdict.reason == "error" else ""
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
