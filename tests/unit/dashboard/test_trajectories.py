"""The trainer's routes of trajectories: every filter, every order, everything on record, and no other tenant's rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.trainer.runs import trajectories
from services.trainer.runs.runs import Runs
from services.trainer.runs.trajectories import TrajectoryFilter
from tests.unit.dashboard.recorded_run import ACTIONS, EVIL, RecordedRun
from triforge.access.callers import Caller, acting_for
from triforge.config import Settings
from triforge.errors import NotFoundError

SORTS = ("step", "length", "tokens", "staleness", "vote", "advantage", "score")


@pytest.fixture
async def http(trainer: httpx.ASGITransport) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=trainer, base_url="http://trainer/v1/runs") as client:
        yield client


@pytest.mark.parametrize(
    ("query", "total"),
    [
        ("", 18),
        ("step=1", 8),
        ("task=task-1", 8),
        ("kind=kind-0", 10),
        ("purpose=evaluate", 2),
        ("outcome=success", 5),
        ("outcome=failure", 9),
        ("outcome=unmeasured", 4),
        ("outcome=scored", 0),
        ("against=true", 4),
        ("truncated=true", 4),
        ("min_length=3", 5),
        ("min_staleness=2", 4),
        ("trained=false&purpose=evaluate", 2),
        ("search=TAKE+CUP", 5),
        ("search=%3Cimg+src", 18),
        ("search=100%25", 0),
    ],
)
async def test_every_filter_finds_what_it_says(
    http: httpx.AsyncClient, recorded: RecordedRun, query: str, total: int
) -> None:
    reply = await http.get(f"/{recorded.run_id}/trajectories?{query}")
    assert reply.status_code == 200, reply.text
    assert reply.json()["total"] == len(reply.json()["items"]) == total


@pytest.mark.parametrize("sort", [*SORTS, *(f"-{name}" for name in SORTS)])
async def test_pages_of_any_order(
    http: httpx.AsyncClient, recorded: RecordedRun, sort: str
) -> None:
    rows: list[dict[str, Any]] = []
    query: dict[str, Any] = {"sort": sort, "limit": 4}
    while True:
        page = (await http.get(f"/{recorded.run_id}/trajectories", params=query)).json()
        rows += page["items"]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert len({row["id"] for row in rows}) == len(rows) == 18
    values = [row[sort.removeprefix("-")] for row in rows]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=sort.startswith("-"))
    assert values == known + [None] * (len(values) - len(known))  # not measured is last


async def test_tokens_votes_and_credit(http: httpx.AsyncClient, recorded: RecordedRun) -> None:
    name = f"{recorded.group(2, 1)}-00"
    found = (await http.get(f"/{recorded.run_id}/trajectories/{name}")).json()
    assert [step["action"] for step in found["steps"]] == [*ACTIONS[0]]
    assert found["instruction"] == f"put some {EVIL} mug in shelf"
    first = found["steps"][0]
    assert (first["response_ids"], first["response_logprobs"]) == ([1], [-0.5])
    assert first["policy_versions"] == [3]
    assert (first["tokens"], first["context"]) == (["</s>"], "w95 w96")
    assert [(vote["value"], vote["text"]) for vote in first["votes"]] == [(1, "good"), (1, "good")]
    assert (first["admissible"], first["finish"]) == (["look", "take mug"], "stop")
    assert found["summary"]["vote"] == pytest.approx(0.6)
    trained = [step["advantage"] for step in found["steps"] if not step["reason"]]
    assert found["summary"]["advantage"] == pytest.approx(sum(trained) / len(trained))

    name = f"{recorded.group(1)}-00"
    steps = (await http.get(f"/{recorded.run_id}/trajectories/{name}")).json()["steps"]
    found = [step["training_logprobs"] for step in steps]
    assert found == [[pytest.approx(-0.4)], [pytest.approx(-0.6)], [None]]


async def test_group_has_all_rollouts(http: httpx.AsyncClient, recorded: RecordedRun) -> None:
    found = (await http.get(f"/{recorded.run_id}/groups/{recorded.group(1)}")).json()["items"]
    assert [len(record["steps"]) for record in found] == [3, 2, 2, 0]
    assert [record["summary"]["error"] for record in found] == ["", "", "", "it broke"]
    assert not {"response_ids", "context_ids"} & set(found[0]["steps"][0])
    assert "ids" not in found[0]["steps"][0]["votes"][0]


async def test_missing_rows_and_filters(http: httpx.AsyncClient, recorded: RecordedRun) -> None:
    run = recorded.run_id
    for path in (
        f"{run}/trajectories/x",
        f"{run}/groups/x",
        "run-x/trajectories",
        "run-x/groups/x",
    ):
        assert (await http.get(f"/{path}")).status_code == 404, path
    for query in ("colour=blue", "sort=colour", "cursor=x", "cursor=1e-e1/1/1", "step=-1"):
        reply = await http.get(f"/{run}/trajectories?{query}")
        assert (reply.status_code, reply.json()["type"]) == (422, "urn:triforge:input"), query


def runs_of(own: RecordedRun) -> Runs:
    nothing: Any = None
    return Runs(
        store=own.store, pools=nothing, broker=nothing, artifacts=own.artifacts, settings=Settings()
    )


def test_tokens_of_a_tokenizer_that_is_gone_are_their_ids(own: RecordedRun) -> None:
    own.store.note(own.run_id, "paths", {"policy": "/gone"})
    found = trajectories.get_trajectory(own.run_id, f"{own.group(1)}-00", runs_of(own))
    assert "tokens" not in found.steps[0]
    assert found.steps[0]["response_ids"] == [1]


def test_rollouts_of_another_tenants_run_do_not_exist(own: RecordedRun) -> None:
    runs, group = runs_of(own), own.group(1)
    with acting_for(Caller(tenant="blue", scope="admin")):
        for ask in (
            lambda: trajectories.list_trajectories(own.run_id, runs, TrajectoryFilter()),
            lambda: trajectories.get_trajectory(own.run_id, f"{group}-00", runs),
            lambda: trajectories.get_group(own.run_id, group, runs),
        ):
            with pytest.raises(NotFoundError):
                ask()
    other = own.store.create(name="mine", pool_id="p", config={}, tenant="blue").id
    with acting_for(Caller(tenant="blue", scope="admin")):
        for ask in (
            lambda: trajectories.get_trajectory(other, f"{group}-00", runs),
            lambda: trajectories.get_group(other, group, runs),
        ):
            with pytest.raises(NotFoundError):
                ask()


async def test_named_measures_of_steps(http: httpx.AsyncClient, recorded: RecordedRun) -> None:
    steps = (await http.get(f"/{recorded.run_id}/steps?measures=success,none,judge/alarm")).json()
    assert [set(step["metrics"]) for step in steps["items"]] == [{"success", "judge/alarm"}] * 2
    below = (await http.get(f"/{recorded.run_id}/steps?measures=success/")).json()
    assert [set(s["metrics"]) for s in below["items"]] == [{"success/low", "success/high"}] * 2
