"""Rewriting a problem that was not generated: a model writes question, tests and reference solution anew, together.

Its programs run in the sandbox, each alone: the reference solution must pass every test; an empty program, one that repeats its
input and one that always prints the commonest output must not; and of the reference with one place changed at least half must
fail. Whether question and tests agree is left to a solver that reads the question only, or to the measurement.
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
from environments.code.params import ProgramParams, TestParams
from triforge.environments.kit import expect_fields, proofs
from triforge.errors import InputError
from triforge.event_loop import together
from triforge.prompt_escaping import neutralise
from triforge.rollout.protocols import RewriteMenu
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
    "easier": "ask for one thing less, one part alone, or smaller inputs; keep what the problem is about",
}
_MUTATE: Final = Path(mutations.__file__).read_text(encoding="utf-8")
_EMPTY: Final = "pass"
_ECHO: Final = "import sys\nprint(sys.stdin.read())"


def menu(given: ProgramParams, direction: Direction) -> RewriteMenu:
    """Return the present problem and the schema of another one."""
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


def apply(given: ProgramParams, answer: dict[str, str]) -> ProgramParams:
    """Return the problem of an answer, with the parent's limits and at most half of the tests as examples."""
    expect_fields(answer, FIELDS, "code rewrite")
    try:
        tests = _TESTS.validate_json(answer["tests"], strict=True)
        return ProgramParams(
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


def drift(root: ProgramParams, candidate: ProgramParams) -> float:
    """Return the share of the words of both questions that only one of them has."""
    one, two = _words(root), _words(candidate)
    return 1.0 - len(one & two) / len(one | two) if one | two else 0.0


def _words(given: ProgramParams) -> set[str]:
    return set(_WORD.findall(given.question.lower()))


async def check(
    sandbox: Sandbox, before: ProgramParams, after: ProgramParams, announced: str
) -> list[CheckResult]:
    """Prove a candidate, cheap proofs first; the first that fails is the last."""
    inputs = len({test.input for test in after.tests})
    fault = "" if inputs >= FEWEST else f"{inputs} different inputs, at least {FEWEST}"
    if not after.reference or after.recipe is not None:
        fault = "expected a reference solution and no recipe"
    if announced != after.instruction:
        fault = "the statement is not that of the question and its examples"
    differs = _words(before) != _words(after) and before.tests != after.tests
    results = proofs(("well_formed", not fault, fault), ("differs", differs))
    if fault or not differs:
        return results
    reference = await score(sandbox, after, after.reference)
    detail = f"the reference solution passes {reference.passed} of {reference.tests} tests {reference.trouble}"
    results += proofs(("solvable", reference.solved, detail.rstrip()))
    if not reference.solved:
        return results
    commonest = Counter(test.output for test in after.tests).most_common(1)[0][0]
    simple = {
        "an empty program": _EMPTY,
        "the input itself": _ECHO,
        "the commonest output": f"print({commonest!r})",
    }
    passing = await _passing(sandbox, after, list(simple.values()))
    winners = [name for name, passes in zip(simple, passing, strict=True) if passes]
    results += proofs(("not_satisfied_at_reset", not winners, ", ".join(winners)))
    if not winners:
        results += proofs(("mutants_fail", *await _mutants_fail(sandbox, after)))
    return results


async def _mutants_fail(sandbox: Sandbox, after: ProgramParams) -> tuple[bool, str]:
    """Return whether the tests fail enough programs that are almost the reference, and how many they fail."""
    made = await sandbox.run(_MUTATE, after.reference, after.limits())
    if not made.ok:
        return False, "the reference solution is no Python that can be changed"
    programs: list[Any] = json.loads(made.stdout)
    failed = (await _passing(sandbox, after, programs)).count(False)
    enough = 0 < len(programs) <= 2 * failed
    return enough, f"{failed} of {len(programs)} changed references fail, at least half must"


async def _passing(sandbox: Sandbox, given: ProgramParams, programs: list[str]) -> list[bool]:
    """Return which programs pass all tests; each runs alone, and its first failed test ends it."""
    scores = await together(score(sandbox, given, program) for program in programs)
    return [one.solved for one in scores]
