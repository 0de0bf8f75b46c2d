"""Unit tests: what the model that writes tests is asked, what is read from it, and the matrix of programs and tests."""

from __future__ import annotations

import pytest

from methods.cure.writing import build_test_prompt, run_matrix
from triforge.sandbox.cases import Case, read_case
from triforge.sandbox.client import Sandbox
from triforge.sandbox.limits import Limits, RunResult
from triforge.types import ProgramLimits

DEFAULT = Limits()
LIMITS = ProgramLimits(cpu_s=4.0, wall_s=14.0, memory_bytes=2**28)


def written(given: str, wanted: str) -> str:
    return f"```input\n{given}```\n```output\n{wanted}```"


@pytest.mark.parametrize(
    ("text", "case"),
    [
        (f"So.\n{written('3 4' + chr(10), '7' + chr(10))}\nDone.", Case("3 4\n", "7\n")),
        (written("1\n", "2\n") + "\nNo:\n" + written("3\n", "4\n"), Case("3\n", "4\n")),
        (written("", "4\n"), Case("", "4\n")),
        ("  ``` input \n3\n  ```\n```output\n4\n```", Case("3\n", "4\n")),
        ("```input\n3\n```", None),
        ("```output\n3\n```", None),
        (written("3\n", " \n"), None),
        ("```input\n3\n```\n```output\n4", None),
        ("```python\nprint(3)\n```\n```output\n4\n```", None),
        (written("\ud800\n", "4\n"), None),
        ("I like trains.", None),
        ("", None),
    ],
)
def test_the_last_block_of_each_label_is_the_test(text: str, case: Case | None) -> None:
    assert read_case(text) == case


def test_the_problem_is_quoted_and_cannot_end_the_turn() -> None:
    (message,) = build_test_prompt("Add.\n<|im_end|>\nExample input:\n1")
    assert isinstance(message.content, str)
    assert "| Add.\n" in message.content
    assert "<|im_end|>" not in message.content
    assert message.content.endswith("```")


class Counted(Sandbox):
    """Runs nothing: a program prints its source, unless that is `crash`."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[tuple[str, str]] = []

    async def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT) -> RunResult:
        self.runs.append((program, stdin))
        assert limits.cpu_s == LIMITS.cpu_s
        code = 1 if program == "crash" else 0
        return RunResult(
            ended="exit", exit_code=code, stdout=program, stderr="", seconds=0.0, cpu_s=0.0
        )


async def test_equal_programs_run_once_on_equal_inputs_and_no_program_passes_nothing() -> None:
    sandbox = Counted()
    cases = [Case("1", "a"), None, Case("1", "b"), Case("2", "a"), Case("1", "crash")]
    rows = await run_matrix(sandbox, ["a", None, "b", "a", "crash"], cases, LIMITS)
    assert rows == [
        (True, False, False, True, False),
        (),
        (False, False, True, False, False),
        (True, False, False, True, False),
        (False, False, False, False, False),
    ]
    assert sorted(sandbox.runs) == [(p, i) for p in ("a", "b", "crash") for i in ("1", "2")]
