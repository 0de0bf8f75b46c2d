"""Killed between acceptance and replacement: the slot is the old task or the new one, and the reason is on record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sections import adapt_settings

if TYPE_CHECKING:
    from tests.unit.env_adapter.conftest import Service


def test_a_process_killed_at_any_statement_leaves_the_slot_before_the_move_or_after_it(
    service: Service, tmp_path: Path
) -> None:
    if not service.database.is_sqlite:
        pytest.skip("copies the database file")
    made = service.pending(service.first)
    first, second = service.pair(made, 1, 8, 4, adapt_settings(acceptance="paper"))
    service.measurements.record(first)
    service.database.close()
    last = tmp_path / "outcome.json"
    last.write_text(second.model_dump_json())
    ran = subprocess.run(
        [sys.executable, "-m", "tests.unit.env_adapter.adaptation.kill_at_statement", str(tmp_path / "store.sqlite"), str(last)],
        capture_output=True, text=True, check=False, timeout=120, cwd=Path(__file__).parents[4],
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    cases = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(cases) > 8, "each statement of the transaction, BEGIN and COMMIT among them"
    assert [case["survived"] for case in cases] == [False] * (len(cases) - 1) + [True]
    others = [[0, "active"], [0, "active"]]
    before = {
        "tasks": [*others[:1], [0, "active"], [1, "pending"], *others[1:]],
        "proposal": "pending", "reason": "", "pairs": 0, "measurements": 2,
    }  # fmt: skip
    after = {
        "tasks": [*others[:1], [0, "replaced"], [1, "active"], *others[1:]],
        "proposal": "accepted",
        "reason": "published rule: accuracy 1.000 before, 0.500 after",
        "pairs": 1, "measurements": 3,
    }  # fmt: skip
    for case in cases:
        assert case["killed"] == (after if case["survived"] else before)
        assert case["again"] == after
