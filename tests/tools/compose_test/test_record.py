"""Does the record of a test name what is missing or wrong?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.compose_test.faults import Limits, Outcome
from scripts.compose_test.record import Record
from scripts.compose_test.recovery import changed
from scripts.compose_test.table import PARTS, failures, report

HOLDS: dict[str, Any] = {"once: No step twice.": []}
PARTS_THAT_PASS: dict[str, dict[str, Any]] = {
    "begun": {"machine": "2 cores", "docker": "Docker 20"},
    "built": {"took_s": 1.0},
    "up": {"took_s": 2.0},
    "peace": {"took_s": 3.0, "status": "finished"},
    "checks": {"checks": HOLDS, "totals": {"runs": 1}},
    "restored": {
        "checks": HOLDS, "changed": [], "mb": 1, "step_when_copied": 2, "backup_s": 1.0, "restore_s": 1.0, "step_after": 2,
        "status": "finished", "step": 6,
    },
    "sidecar": {"up_s": 1.0, "run_s": 1.0, "step": 4, "judge": 3, "wrong": []},
    "programs": {"up_s": 1.0, "run_s": 1.0, "wrong": []},
}  # fmt: skip


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record.json")


def strike(record: Record, number: int, **changes: Any) -> None:
    outcome = Outcome("kill -9", "reward", "r", 1, 180.0, 0.0, 4.0, 5.0)
    record.fault(number, outcome.document() | changes)


def write_all(record: Record, **changes: dict[str, Any]) -> dict[str, Any]:
    for part, what in (PARTS_THAT_PASS | changes).items():
        record.note(part, **what)
    return record.story


def test_a_whole_test_that_went_well_has_no_failures(record: Record) -> None:
    strike(record, 0)
    lines = write_all(record)
    assert failures(lines) == []
    assert "| kill -9 | reward | 4 s | 5 s |" in report(lines)


def test_what_is_on_the_disk_names_what_was_not_reached(record: Record) -> None:
    record.note("built", took_s=1.0)
    strike(record, 0, step_s=None)
    strike(record, 0)  # the same fault, when more is known of it
    lines = json.loads(record.path.read_text())
    assert failures(lines) == [f"{part}: not reached" for part in PARTS if part != "built"]
    assert "| kill -9 | reward | 4 s | 5 s |" in report(lines)


@pytest.mark.parametrize(
    ("part", "change", "failure"),
    [
        ("checks", {"checks": {"once: No step twice.": ["a"]}, "totals": {}}, "once: 1 wrong, a"),
        ("restored", {**PARTS_THAT_PASS["restored"], "changed": ["run r: steps differ"]}, "run r: steps differ"),
        ("sidecar", {**PARTS_THAT_PASS["sidecar"], "wrong": ["policy-model runs"]}, "policy-model runs"),
        ("programs", {"up_s": 1.0, "run_s": 1.0, "wrong": ["step 1"]}, "step 1"),
        ("peace", {"took_s": 3.0, "status": "failed"}, "the run in peace: failed"),
    ],
)  # fmt: skip
def test_each_part_can_fail_the_test(
    record: Record, part: str, change: dict[str, Any], failure: str
) -> None:
    assert failures(write_all(record, **{part: change})) == [failure]


def test_a_fault_that_was_not_got_over_in_its_time_fails_the_test(record: Record) -> None:
    strike(record, 0, well_s=None)
    assert failures(write_all(record)) == ["kill -9 reward: not over it within 180 s"]


def test_the_death_of_all_has_the_time_that_the_same_stack_takes_to_come_up() -> None:
    assert Limits.of(180.0, up_s=60.0) == Limits(180.0, 180.0)
    assert Limits.of(180.0, up_s=145.0) == Limits(180.0, 290.0)


def test_a_restore_that_lost_a_step_or_a_run_is_seen() -> None:
    run = {kind: [1] for kind in ("steps", "weights", "plans", "measurements", "records", "folders")}  # fmt: skip
    before = {"runs": [{"run": {"id": "r"}, **run, "keys": {"a": 1}}]}
    assert changed(before, {"runs": [{"run": {"id": "r"}, **run, "keys": {}}]}) == []
    assert changed(before, {"runs": [{"run": {"id": "r"}, **run, "steps": []}]}) == ["run r: steps differ"]  # fmt: skip
    assert len(changed(before, {"runs": []})) == 7
