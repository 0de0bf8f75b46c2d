"""Proofs by execution: what programs that we wrote ourselves print for every test, all in one run of the sandbox.

One process for all of them makes a proof cost as much as one run. It is for programs cooked from recipes only: programs
of a model could see one another there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from environments.code.params import ProgramParams
from triforge.errors import EnvError
from triforge.sandbox.cases import same_output
from triforge.sandbox.client import Sandbox
from triforge.sandbox.limits import MIB, Limits

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
_LIMITS: Final = Limits(cpu_s=20.0, wall_s=120.0, output_bytes=8 * MIB)


async def passed(
    sandbox: Sandbox, problem: ProgramParams, programs: Sequence[str]
) -> list[list[bool]]:
    """Which tests of a problem each program passes. The programs must be our own."""
    asked = {"programs": list(programs), "inputs": [test.input for test in problem.tests]}
    result = await sandbox.run(_DRIVER, json.dumps(asked), _LIMITS)
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

    Args:
        sandbox: where.
        problem: with a recipe.
        others: further programs of ours.

    Returns:
        What is wrong with the problem (empty when nothing is), and how many tests each of `others` passes.
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
