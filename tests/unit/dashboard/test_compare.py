"""The comparison of runs."""

from __future__ import annotations

import httpx
from markupsafe import escape

from services.dashboard.compare import differing, overlaid, solved_by_some
from tests.unit.dashboard.recorded_run import EVIL, RecordedRun
from triforge.store.tables import TrajectoryRow
from triforge.types import RunStep, TrajectorySummary


def step(number: int, **metrics: float) -> RunStep:
    return RunStep(
        run_id="r", step=number, at=0.0, policy_version=0, reward_version=0, metrics=metrics
    )


def episode(task: str, outcome: int | None) -> TrajectorySummary:
    return TrajectorySummary(
        id="i", run_id="r", step=1, purpose="evaluate", group_id="g", task_id=task, task_slot=task, outcome=outcome,
        score=None, length=1, tokens=1, truncated=False, staleness=0, votes=0, vote=None, against=False, advantage=None,
    )  # fmt: skip


def test_a_measure_of_two_runs_is_two_lines_of_one_chart() -> None:
    runs = [[step(1, success=0.1)], [step(1, success=0.2), step(3, success=0.3)]]
    (chart,), merged = overlaid(["success"], ["a", "b"], runs)
    assert (chart.title, chart.top) == ("Success: training tasks", 1.0)
    assert chart.series == {"a": "0/success", "b": "1/success"}
    assert [(s.step, s.metrics) for s in merged] == [
        (1, {"0/success": 0.1, "1/success": 0.2}), (3, {"1/success": 0.3}),
    ]  # fmt: skip


def test_only_what_differs_in_the_configs_is_named() -> None:
    assert differing([{"run": {"steps": 1, "seed": 0}}, {"run": {"steps": 2, "seed": 0}, "x": {}}]) == [
        ("run.steps", ["1", "2"]), ("x", ["", "{}"]),
    ]  # fmt: skip


def test_a_task_counts_if_all_measured_it_and_not_all_solved_it() -> None:
    first = [
        episode(task, outcome) for task, outcome in zip("aabcd", (1, -1, 1, 1, None), strict=True)
    ]
    second = [episode("a", -1), episode("b", 1), episode("d", 1)]
    found = [(row.task_id, counts) for row, counts in solved_by_some([first, second])]
    assert found == [("a", [(1, 2), (0, 1)])]


async def test_two_runs_are_compared(pages: httpx.AsyncClient, recorded: RecordedRun) -> None:
    other = recorded.store.create(name="other", pool_id="p", config={"run": {"steps": 9}})
    evaluated = {"run_id": other.id, "artifacts": {"evaluation": "e.parquet"}}
    recorded.store.commit_step(step(2, success=0.25).model_copy(update=evaluated))
    with recorded.store._db.write() as session:
        summary = episode("task-0", -1).model_dump()
        summary |= {"run_id": other.id, "id": "other", "step": 2}
        session.add(TrajectoryRow(**summary, number=0, words=""))
        session.query(TrajectoryRow).filter_by(id="other").update({"score": 0.0})
    reply = await pages.get("/compare", params={"run": [recorded.run_id, other.id]})
    assert reply.status_code == 200, reply.text
    assert "<img" not in reply.text
    assert (
        f'aria-label="{escape(f"Success: training tasks: {EVIL}, other, steps 1 to 2")}"'
        in reply.text
    )
    assert "run.steps" in reply.text
    assert "✓ 1 of 2" in reply.text
    assert "✗ 0 of 1" in reply.text
    assert (await pages.get("/compare", params={"run": recorded.run_id})).status_code == 422
    missing = await pages.get("/compare", params={"run": [recorded.run_id, "run-x"]})
    assert missing.status_code == 404
