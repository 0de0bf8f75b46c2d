"""The comparison of runs."""

from __future__ import annotations

import httpx
import pytest
from markupsafe import escape

from services.dashboard.apis import Apis
from services.dashboard.app import create_app
from services.dashboard.compare import differing, in_common, overlaid
from tests.unit.dashboard.conftest import trainer_of
from tests.unit.dashboard.recorded_run import EVIL, RecordedRun
from triforge.store.tables import TrajectoryRow
from triforge.types import RunStep, Task, TrajectorySummary


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


def test_a_task_counts_if_all_measured_it_under_any_id() -> None:
    first = [
        episode(task, outcome) for task, outcome in zip("aabcd", (1, -1, 1, 1, None), strict=True)
    ]
    second = [episode("a", -1), episode("x", 1), episode("d", 1)]
    found = [(row.task_id, counts) for row, counts in in_common([first, second], {})]
    assert found == [("a", [("a", 1, 2), ("a", 0, 1)])]
    found = [
        (row.task_id, counts)
        for row, counts in in_common([first, second], {"b": "same", "x": "same"})
    ]
    assert found[1:] == [("b", [("b", 1, 1), ("x", 1, 1)])]


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


class Pools(httpx.AsyncBaseTransport):
    """The trainer, and an env_adapter whose pools have one task each, which asks `asked[pool]`."""

    def __init__(self, trainer: httpx.ASGITransport, asked: dict[str, int]) -> None:
        self._trainer, self._asked = trainer, asked

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        parts = request.url.path.split("/")
        if parts[2] != "pools":
            return await self._trainer.handle_async_request(request)
        name = {"pool-1": "task-0", "p": "task-p"}[parts[3]]
        task = Task(
            id=name, pool_id=parts[3], slot=name, family="f", instruction="",
            params={"n": self._asked[parts[3]]},
        )  # fmt: skip
        return httpx.Response(200, json={"items": [task.model_dump()]})


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"pool-1": 1, "p": 1}, "task=task-p"),
        ({"pool-1": 1, "p": 2}, "The runs have no measured task in common."),
    ],
)
async def test_equal_tasks_of_two_pools_are_one(
    own: RecordedRun, asked: dict[str, int], shown: str
) -> None:
    other = own.store.create(name="other", pool_id="p", config={})
    evaluated = {"run_id": other.id, "artifacts": {"evaluation": "e.parquet"}}
    own.store.commit_step(step(2, success=0.25).model_copy(update=evaluated))
    with own.store._db.write() as session:
        summary = episode("task-p", -1).model_dump()
        summary |= {"run_id": other.id, "id": "other", "step": 2}
        session.add(TrajectoryRow(**summary, number=0, words=""))
    apis = Apis(
        {"trainer": "http://t", "env_adapter": "http://e"}, transport=Pools(trainer_of(own), asked)
    )
    app = httpx.ASGITransport(create_app(apis=apis))
    async with httpx.AsyncClient(transport=app, base_url="http://dashboard") as client:
        reply = await client.get("/compare", params={"run": [own.run_id, other.id]})
    await apis.close()
    assert (reply.status_code, shown in reply.text) == (200, True)
