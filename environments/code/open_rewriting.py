"""Rewriting a problem that was not generated: a model writes question, tests and reference solution anew, together.

Nothing of the answer is believed. Its programs run in the sandbox, each alone: the reference solution must pass every test, an
empty program, one that repeats its input and one that always prints the commonest output must not, and of the reference
with one place changed at least half must fail. Whether the question asks for what the tests reward is left to a solver that reads the question only, or
to the measurement.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from environments.code import mutations
from environments.code.execution import score
from environments.code.params import ProgramParams, TestParams, instruction, kind_of
from triforge.errors import InputError
from triforge.event_loop import together
from triforge.prompt_escaping import neutralise
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.sandbox.client import Sandbox
from triforge.types import CheckResult, Direction

FEWEST: Final = 4
_MOST: Final = 24
_TEXT: Final = {"type": "string", "minLength": 1}  # long limits make some engines' grammars slow
_CASE: Final = {
    "type": "object",
    "properties": {"input": {"type": "string"}, "output": _TEXT},
    "required": ["input", "output"],
    "additionalProperties": False,
}
FIELDS: Final = {
    "question": _TEXT,
    "tests": {"type": "array", "items": _CASE, "minItems": FEWEST, "maxItems": _MOST},
    "reference": _TEXT,
}
SCHEMA: Final = json.dumps(
    {
        "type": "object",
        "properties": FIELDS,
        "required": list(FIELDS),
        "additionalProperties": False,
    }
)
_TESTS: Final = TypeAdapter(list[TestParams])
_SHOWN: Final = 3  # tests of the present problem
_WORD: Final = re.compile(r"\w+")
_HOW: Final[dict[Direction, str]] = {
    "harder": "ask for one thing more, or a case that needs more thought; keep what the problem is about",
    "easier": "ask for one thing less, or smaller inputs; keep what the problem is about",
}
_MUTATE: Final = Path(mutations.__file__).read_text(encoding="utf-8")
_EMPTY: Final = "pass"
_ECHO: Final = "import sys\nprint(sys.stdin.read())"


def menu(given: ProgramParams, direction: Direction) -> RewriteMenu:
    """The present problem, and the schema of another one."""
    lines = [f"Present problem:\n{neutralise(given.question)[:6000]}"]
    for test in given.tests[:_SHOWN]:
        pair = neutralise(test.input)[:500].rstrip(), neutralise(test.output)[:500].rstrip()
        lines.append("A test reads\n{}\nand expects\n{}".format(*pair))
    lines.append(
        f"Write another problem, {direction}: {_HOW[direction]}. Programs read standard input and print to standard output. "
        f"Give its question (with the form of input and output), at least {FEWEST} different tests whose outputs differ, too, and "
        "reference: a Python 3 program that solves it with the standard library. Every test is run against the reference; "
        "tests that a wrong program passes are refused."
    )
    return RewriteMenu(description="\n".join(lines), json_schema=SCHEMA)


def apply(given: ProgramParams, answer: dict[str, str]) -> TaskDraft:
    """The problem of an answer; limits are the parent's, and so is the number of examples, of at most half of the tests."""
    if set(answer) != set(FIELDS):
        raise InputError(
            f"code rewrite: fields were {sorted(answer)}, expected exactly {', '.join(FIELDS)}"
        )
    try:
        tests = _TESTS.validate_json(answer["tests"], strict=True)
        made = ProgramParams(
            question=answer["question"],
            tests=tests,
            public=min(given.public, len(tests) // 2),
            time_limit_s=given.time_limit_s,
            memory_mib=given.memory_mib,
            reference=answer["reference"],
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "tests"
        raise InputError(f"code rewrite: field {place}: {first['msg']}") from None
    return TaskDraft(
        params=made.model_dump(mode="json"), instruction=instruction(made), kind=kind_of(made)
    )


def drift(root: ProgramParams, candidate: ProgramParams) -> float:
    """The share of the words of both questions that only one of them has."""
    one, two = _words(root), _words(candidate)
    return 1.0 - len(one & two) / len(one | two) if one | two else 0.0


def _words(given: ProgramParams) -> set[str]:
    return set(_WORD.findall(given.question.lower()))


async def check(
    sandbox: Sandbox, before: ProgramParams, after: ProgramParams, announced: str
) -> list[CheckResult]:
    """The proofs, the cheap ones first; programs run only of what is well formed."""
    found = [
        _well_formed(after, announced),
        _result("differs", _words(before) != _words(after) and before.tests != after.tests),
    ]
    if not all(result.passed for result in found):
        return found
    reference = await score(sandbox, after, after.reference)
    said = f"the reference solution passes {reference.passed} of {reference.tests} tests"
    found.append(_result("solvable", reference.solved, f"{said} {reference.trouble}".rstrip()))
    if not reference.solved:
        return found
    commonest = Counter(test.output for test in after.tests).most_common(1)[0][0]
    simple = {
        "an empty program": _EMPTY,
        "the input itself": _ECHO,
        "the commonest output": f"print({commonest!r})",
    }
    passing = await _passing(sandbox, after, list(simple.values()))
    winners = [name for name, passes in zip(simple, passing, strict=True) if passes]
    found.append(_result("not_satisfied_at_reset", not winners, ", ".join(winners)))
    if not winners:
        found.append(await _mutants_fail(sandbox, after))
    return found


def _well_formed(after: ProgramParams, announced: str) -> CheckResult:
    inputs = len({test.input for test in after.tests})
    if announced != instruction(after):
        return _result(
            "well_formed", False, "the statement is not that of the question and its examples"
        )
    if not after.reference or after.recipe is not None:
        return _result("well_formed", False, "expected a reference solution and no recipe")
    return _result("well_formed", inputs >= FEWEST, f"{inputs} different inputs, at least {FEWEST}")


async def _mutants_fail(sandbox: Sandbox, after: ProgramParams) -> CheckResult:
    """Whether tests tell the reference from programs that are almost it."""
    made = await sandbox.run(_MUTATE, after.reference, after.limits())
    if not made.ok:
        return _result(
            "mutants_fail", False, "the reference solution is no Python that can be changed"
        )
    programs: list[Any] = json.loads(made.stdout)
    passes = await _passing(sandbox, after, programs)
    failed = passes.count(False)
    enough = 0 < len(programs) <= 2 * failed
    said = f"{failed} of {len(programs)} changed references fail, at least half must"
    return _result("mutants_fail", enough, said)


async def _passing(sandbox: Sandbox, given: ProgramParams, programs: list[str]) -> list[bool]:
    """Which programs pass all tests; each run is alone, the first failed test ends a program."""
    scores = await together(score(sandbox, given, program) for program in programs)
    return [found.solved for found in scores]


def _result(name: str, passed: bool, detail: str = "") -> CheckResult:
    return CheckResult(name=name, passed=passed, detail=detail)
