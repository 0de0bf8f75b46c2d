"""Two runs on the same held-out tasks: the difference task by task, and the page that shows both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from demo.gap import evaluated as read
from demo.gap import facts, gap, table, write
from demo.report import Baseline, write_report
from tests.unit.demo.test_demo import record, step
from tests.unit.demo.test_report import exported


def evaluated(pool: str, outcomes: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """Two turns of one episode a task at each of the steps 0, 5, 10."""
    return [
        {"step": at, "purpose": "evaluate", "task_slot": f"t-{pool}-{place}", "trajectory_id": f"{pool}-{at}-{place}",
         "outcome": outcome}
        for place, found in outcomes.items()
        for at, outcome in zip((0, 5, 10), found, strict=False)
        for _ in range(2)
    ]  # fmt: skip


def test_the_difference_is_over_tasks_and_leaves_the_first_evaluation_out(tmp_path: Path) -> None:
    first = exported(
        tmp_path / "a", evaluated("a", {"h0": (1, -1, -1), "h1": (1, -1, 1), "h2": (1, -1, -1)})
    )
    second = exported(
        tmp_path / "b", evaluated("b", {"h0": (-1, 1, 1), "h1": (-1, -1, 1), "h2": (-1, -1, 1)})
    )
    found = gap(read(first), read(second))
    assert found is not None
    assert found.steps == [5, 10]
    assert (found.first, found.second) == (pytest.approx(1 / 6), pytest.approx(2 / 3))
    assert found.difference.count == 3
    assert found.difference.value == pytest.approx((1.0 + 0.0 + 0.5) / 3)
    # Student's t of two degrees of freedom, 4.303, times the deviation .5 over the root of 3
    assert found.difference.half == pytest.approx(4.303 * 0.5 / 3**0.5, rel=1e-3)
    assert "mean after steps 5, 10: outcome only 0.167, the loop 0.667" in found.text("outcome only", "the loop")  # fmt: skip


def test_runs_without_a_common_evaluation_are_not_compared(tmp_path: Path) -> None:
    whole = exported(tmp_path / "a", evaluated("a", {"h0": (-1, 1, 1)}))
    stopped = exported(tmp_path / "b", evaluated("b", {"h0": (-1, 1)}))
    assert gap(read(whole), read(stopped)) is None
    assert gap(read(whole), read(tmp_path / "none")) is None


def test_records_of_seeds_make_one_table(tmp_path: Path) -> None:
    lines = []
    for seed, better in ((2, (1, 1)), (1, (1, -1))):
        files = [
            exported(tmp_path / f"{seed}{name}", evaluated(name, {"h0": (-1, *found), "h1": (-1, *found)}))
            for name, found in (("a", (-1, -1)), ("b", better))
        ]  # fmt: skip
        steps = [
            step(1, {"audit/refused": 1.0}),
            step(2, {"judge/alarm/praise": 4.0, "other": 1.0}),
        ]
        loop = record(steps)
        loop.pool.proposals.update(accepted=1, rejected=2, pending=3)
        write(tmp_path / "gap.jsonl", seed, read(files[0]), read(files[1]), facts(loop))
        lines.append(json.loads((tmp_path / "gap.jsonl").read_text()))
    rows = table(lines).splitlines()
    assert rows[2:4] == [
        "| 1 | 0.000 | 0.500 | +0.500 ± 0.000 | 1 of 3 | 1 | 1 | 3 |",
        "| 2 | 0.000 | 1.000 | +1.000 ± 0.000 | 1 of 3 | 1 | 1 | 3 |",
    ]
    assert rows[-1].startswith("2 seeds: 2 above, 2 with an interval above 0; difference +0.750")


def test_the_page_draws_both_runs_in_one_picture(tmp_path: Path) -> None:
    files = [
        exported(tmp_path / pool, evaluated(pool, {"h0": (-1, 1, 1), "h1": (-1, -1, 1)}))
        for pool in ("pool-a", "pool-b")
    ]
    apart = gap(*map(read, files))
    assert apart is not None
    steps = [step(at, {"eval/sampled": at / 20}) for at in (0, 5, 10)]
    baseline = Baseline(record=record(steps), gap=apart)
    write_report(record(steps), (), tmp_path / "report.html", None, baseline)
    page = (tmp_path / "report.html").read_text()
    assert "Held-out success, mean after steps 5, 10" in page
    assert page.count("<title>outcome only: 0.5</title>") == 1
    assert page.count("<title>the loop: 0.5</title>") == 1
