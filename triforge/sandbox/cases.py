"""Runs of programs on tests: standard input in, standard output compared. Expected outputs never enter the sandbox."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from triforge.event_loop import together
from triforge.sandbox.client import Sandbox
from triforge.sandbox.limits import Limits, RunResult

_BLOCK: Final = re.compile(
    r"^[ \t]*```[ \t]*(input|output)[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL
)
CASE_FORM: Final = """End with the test in exactly this form:

```input
what the program reads
```
```output
what the program has to print
```"""
"""Tells a model the form that `read_case` reads."""
_AT_ONCE: Final = 16  # tests of a program that are handed in together


@dataclass(frozen=True, slots=True)
class Case:
    """One test: the program's input and the output that is expected."""

    input: str
    output: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A program's result on a test; `reason` is "right", "wrong", "error" (a status other than 0) or the limit it met."""

    passed: bool
    reason: str
    result: RunResult


def read_case(text: str) -> Case | None:
    """Read the test in a response; None without both blocks, without any expected output, or with lone surrogates.

    Outputs are compared word by word, so every program that prints nothing would pass a test without an output.
    """
    blocks = dict(_BLOCK.findall(text))
    if "input" not in blocks or not blocks.get("output", "").split():
        return None
    try:
        (blocks["input"] + blocks["output"]).encode()
    except UnicodeEncodeError:
        return None
    return Case(blocks["input"], blocks["output"])


def same_output(output: str, expected: str) -> bool:
    """Return whether two outputs are equal but for white space."""
    return output.split() == expected.split()


async def run_case(sandbox: Sandbox, program: str, case: Case, limits: Limits) -> Verdict:
    """Run a program on one test. Errors: see `Sandbox.run`."""
    result = await sandbox.run(program, case.input, limits)
    if not result.ok:
        reason = "error" if result.ended == "exit" else result.ended
        return Verdict(passed=False, reason=reason, result=result)
    passed = same_output(result.stdout, case.output)
    return Verdict(passed=passed, reason="right" if passed else "wrong", result=result)


async def run_cases(
    sandbox: Sandbox,
    program: str,
    cases: Sequence[Case],
    limits: Limits,
    *,
    stop_at_first: bool = False,
    total_s: float = math.inf,
) -> tuple[Verdict, ...]:
    """Run a program on every test, each time in a sandbox of its own.

    Args:
        stop_at_first: run them one after the other and stop after the first that fails; the verdicts then end with it.
        total_s: seconds of all runs together, each counted by its processor time, or by its wall time where that was its limit.
            The verdicts end with the test, in the order of the tests, that uses them up.

    Raises:
        SandboxError: a sandbox could not start; there are no verdicts then.
    """
    verdicts: list[Verdict] = []
    spent = 0.0
    while len(verdicts) < len(cases):
        affordable = min((total_s - spent) / limits.cpu_s, _AT_ONCE)
        room = 1 if stop_at_first else max(1, int(affordable))
        part = cases[len(verdicts) : len(verdicts) + room]
        for verdict in await together(run_case(sandbox, program, one, limits) for one in part):
            verdicts.append(verdict)
            spent += limits.wall_s if verdict.reason == "wall_time" else verdict.result.cpu_s
            if spent >= total_s or (stop_at_first and not verdict.passed):
                return tuple(verdicts)
    return tuple(verdicts)
