"""Programs of a model in the stack's containers: the file docker-compose.code.yml, a pool of the family `code`, two steps.

The model is a tiny one with random weights whose answers are held to a few programs and tests, so what each must come to is
known: a sandbox that refuses, or runs something else, is seen in the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

GROUPS, ROLLOUTS, TESTS, STEPS = 2, 8, 6, 2
# the right program prints 1 whatever it reads; the one that prints what it read passes half of the tests
_HIDDEN = [{"input": "1\n", "output": "1\n"}, {"input": "2\n", "output": "1\n"}]
DRAWN: dict[str, Any] = {
    "name": "drawn-programs", "environment": "code", "generate": {"count": 2, "heldout": 1, "seed": 1},
}  # fmt: skip
POOL: dict[str, Any] = {
    "name": "programs",
    "environment": "code",
    "tasks": [
        {"params": {"question": f"Print 1, whatever you read ({n}).", "tests": _HIDDEN}}
        for n in range(GROUPS)
    ],
}


def wrong_with(steps: Sequence[Mapping[str, Any]], records: Path) -> list[str]:
    """Return what two steps of programs and tests should have left and have not."""
    wrong = []
    if len(steps) != STEPS:
        wrong.append(f"{len(steps)} steps, expected {STEPS}")
    for step in steps:
        measures = step["metrics"]
        expected = {
            "infrastructure_failures": 0, "unit_tests/failed": 0, "unit_tests/invalid": 0, "unit_tests/written": GROUPS * TESTS,
        }  # fmt: skip
        wrong += [
            f"step {step['step']}: {name} is {measures.get(name)}, expected {count}"
            for name, count in expected.items()
            if measures.get(name) != count
        ]
    rows = pq.read_table(records).to_pylist()
    by_id = {row["trajectory_id"]: row for row in rows}
    groups = [row for row in rows if row["texts"]]
    if (len(by_id), len(groups)) != (STEPS * GROUPS * ROLLOUTS, STEPS * GROUPS):
        wrong.append(f"{len(by_id)} programs and {len(groups)} groups with tests are on record")
    for row in by_id.values():
        right = sum(_printed(row["action"], test["input"]) == "1" for test in _HIDDEN)
        if row["share"] != right / len(_HIDDEN):
            wrong.append(f"{row['action']!r} passed {row['share']} of its tests, expected {right} of {len(_HIDDEN)}")  # fmt: skip
    for group in groups:
        programs = [by_id[name]["action"] for name in json.loads(group["extra"])["cure"]]
        for test in (json.loads(text["extra"])["cure"] for text in group["texts"]):
            expected_verdicts = [_printed(program, test["input"]) == test["output"].strip() for program in programs]  # fmt: skip
            if test["accepts"] != expected_verdicts:
                wrong.append(f"group {group['group_id']}: a test accepted {test['accepts']}, expected {expected_verdicts}")  # fmt: skip
    return wrong


def _printed(program: str, given: str) -> str:
    return given.strip() if "input" in program else "1" if "(1)" in program else "2"
