"""Would the test of the stack notice that a container ran other programs, or none?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.compose_test.programs import GROUPS, ROLLOUTS, STEPS, TESTS, wrong_with

MEASURES = {"infrastructure_failures": 0, "unit_tests/failed": 0, "unit_tests/invalid": 0, "unit_tests/written": GROUPS * TESTS}  # fmt: skip
PROGRAMS = ["print(1)", "print(2)", "print(input())"]
SHARES = [1.0, 0.0, 0.5]  # of the tests that a 1 is printed, whatever is read
STEP = [{"step": n, "metrics": MEASURES} for n in range(1, STEPS + 1)]


def text_of(accepts: list[bool]) -> dict[str, str]:
    return {"extra": json.dumps({"cure": {"input": "1\n", "output": "1\n", "accepts": accepts}})}


def records() -> list[dict[str, Any]]:
    """Return the records that runs of every program leave: the group's tests stand in the row of its first rollout."""
    rows: list[dict[str, Any]] = []
    for group in range(STEPS * GROUPS):
        names = [f"{group}/{n}" for n in range(ROLLOUTS)]
        accepts = [
            n % 3 != 1 for n in range(ROLLOUTS)
        ]  # given 1, a 2 is printed by the second only
        test = text_of(accepts)
        rows += [
            {
                "trajectory_id": name, "group_id": str(group), "action": PROGRAMS[n % 3], "share": SHARES[n % 3],
                "texts": [] if n else [test] * TESTS, "extra": "" if n else json.dumps({"cure": names}),
            }
            for n, name in enumerate(names)
        ]  # fmt: skip
    return rows


def wrong(tmp_path: Path, rows: list[dict[str, Any]], steps: list[dict[str, Any]]) -> list[str]:
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "programs.parquet")
    return wrong_with(steps, tmp_path / "programs.parquet")


def test_programs_that_came_to_what_they_print_pass(tmp_path: Path) -> None:
    assert wrong(tmp_path, records(), STEP) == []


@pytest.mark.parametrize(
    ("column", "value"), [("share", 0.5), ("action", "print(2)")], ids=["share", "program"]
)
def test_a_program_that_came_to_something_else_is_seen(
    tmp_path: Path, column: str, value: object
) -> None:
    rows = records()
    rows[3][column] = value
    assert wrong(tmp_path, rows, STEP)


def test_a_test_that_accepted_something_else_is_seen(tmp_path: Path) -> None:
    rows = records()
    rows[0]["texts"] = [text_of([True] * ROLLOUTS)] * TESTS
    assert len(wrong(tmp_path, rows, STEP)) == TESTS


def test_episodes_that_the_sandbox_refused_are_seen(tmp_path: Path) -> None:
    refused = [{"step": 1, "metrics": MEASURES | {"infrastructure_failures": 2}}, STEP[1]]
    assert wrong(tmp_path, records(), refused) == ["step 1: infrastructure_failures is 2, expected 0"]  # fmt: skip
    assert wrong(tmp_path, records()[ROLLOUTS:], STEP)
    assert wrong(tmp_path, records(), STEP[:1]) == [f"1 steps, expected {STEPS}"]
