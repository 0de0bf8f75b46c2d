"""Checking a function without showing it the check: its calls are replayed to it, its results are replayed to the check.

A check is code, `def check(candidate)` with assertions. If it ran in one process with the program, the program could read
it, or end the process as if all were well. So three programs run, each in a sandbox of its own:

    1. the check with the reference solution, writing down the calls it makes     (once a task)
    2. the program, which is given these calls one by one and says what it returns
    3. the check, whose candidate answers with what was said

Nothing of the program runs in the third, and nothing of the check in the second. This asks of a check that its calls do not
depend on right answers to it, as all of HumanEval's do (their random numbers are seeded), and that arguments and
results are plain data: numbers, texts, lists, tuples, sets, dicts, None. Arguments are fresh in every call.
"""

from __future__ import annotations

from typing import Final

from environments.code.params import FunctionParams
from triforge.errors import EnvError
from triforge.sandbox.client import Sandbox
from triforge.sandbox.limits import RunResult

_SEED: Final = "import random as _r\n_r.seed(0)\n"
_RECORD: Final = """
def _recording(solution, said=print):
    def candidate(*arguments, **named):
        said(repr((arguments, named)))
        return solution(*arguments, **named)
    return candidate
{seed}check(_recording({entry}))
"""
_ANSWER: Final = """
import ast as _ast, sys as _sys
_said, _sys.stdout = _sys.stdout, _sys.stderr
def _answers(entry):
    for line in _sys.stdin:
        arguments, named = _ast.literal_eval(line)
        try:
            result = repr((True, entry(*arguments, **named)))
        except Exception as error:
            result = repr((False, type(error).__name__))
        _said.write(result.replace("\\n", " ") + "\\n")
    _said.flush()
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


async def check(sandbox: Sandbox, task: FunctionParams, program: str) -> str:
    """Check a program that defines the function; returns what is wrong with it, empty when nothing is."""
    calls = await _calls(sandbox, task)
    source = f"{task.prompt}\n{program}\n" + _ANSWER.format(entry=task.entry_point)
    answered = await sandbox.run(source, calls, task.limits())
    if not answered.ok:
        return _why(answered)
    count = len(calls.splitlines())
    given = f"{count}\n{calls}{answered.stdout}"
    judged = await sandbox.run(_solved(task) + _REPLAY.format(seed=_SEED), given, task.limits())
    if judged.ok and judged.stdout.endswith("passed\n"):
        return ""
    return _why(judged) if judged.ended == "exit" else "the check did not end"


async def _calls(sandbox: Sandbox, task: FunctionParams) -> str:
    """The calls that the check makes, a line each."""
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
        return {"output": "too much output", "memory": "too much memory"}.get(
            result.ended, "too slow"
        )
    said = result.stderr.strip().splitlines()[-1:] or ["no output"]
    return said[0][:300]
