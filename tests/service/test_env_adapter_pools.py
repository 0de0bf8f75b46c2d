"""Pools, tasks and plans through the API, as a client sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from services.env_adapter.pools.rows import new_row
from tests.sections import plain_proposal
from tests.service.env_service import GAME, api, game
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.errors import InputError, NotFoundError
from triforge.store.database import Database
from triforge.types import GenerateSpec, PlanRequest, PoolRequest, Proposal, TaskUpload


@pytest.fixture
def app(database: Database) -> FastAPI:
    return api(database)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://env") as client:
        yield client


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[EnvAdapterClient]:
    opened = EnvAdapterClient("http://env", transport=httpx.ASGITransport(app=app))
    yield opened
    await opened.close()


def request(name: str = "kitchen", **fields: Any) -> PoolRequest:
    return PoolRequest(name=name, environment="household", **fields)


def generated(count: int = 4, heldout: int = 2, seed: int = 3) -> GenerateSpec:
    return GenerateSpec(count=count, heldout=heldout, seed=seed)


async def test_an_uploaded_pool_is_listed_shown_and_read_back(client: EnvAdapterClient) -> None:
    made = await client.create_pool(
        request(
            tasks=(TaskUpload(params=game(20)), TaskUpload(params=game(21), split="heldout")),
            options={"wording": "terse"},
        )
    )
    assert made.tasks == {"train": {"active": 1}, "heldout": {"active": 1}}
    assert made.options == {"wording": "terse"}
    assert await client.pools() == [made]
    assert await client.pool("kitchen") == await client.pool(made.id) == made
    held, trained = [task async for task in client.tasks("kitchen")]
    assert (held.split, trained.split) == ("heldout", "train")
    assert trained.params["goal"] == GAME["goal"]
    assert "mug" in trained.instruction
    assert trained.slot == trained.id
    assert (await client.task(trained.id)).task == trained


async def test_a_pool_is_checked_against_the_options_of_a_run(client: EnvAdapterClient) -> None:
    made = await client.create_pool(request(generate=generated()))
    assert await client.check_pool(made.id, {"wording": "terse"}) == made
    with pytest.raises(InputError, match="household options: field colour: unknown, known are"):
        await client.check_pool("kitchen", {"colour": "blue"})
    with pytest.raises(NotFoundError):
        await client.check_pool("cellar", {})


async def test_a_pool_is_checked_with_its_own_options_and_those_asked_for_over_them(
    client: EnvAdapterClient,
) -> None:
    rewards = "environments.prompts.rewards"
    made = await client.create_pool(
        PoolRequest(
            name="sums",
            environment="prompts",
            options={"reward": f"{rewards}:exact"},
            tasks=(TaskUpload(params={"prompt": "2 + 2?", "columns": {"answer": "4"}}),),
        )
    )
    assert await client.check_pool("sums", {}) == made
    with pytest.raises(InputError, match="no_such"):
        await client.check_pool("sums", {"reward": f"{rewards}:no_such"})


async def test_a_pool_names_a_family_by_its_path(client: EnvAdapterClient) -> None:
    path = "triforge.testing.fakes:FakeFamily"
    made = await client.create_pool(
        PoolRequest(name="own", environment=path, tasks=(TaskUpload(params={"target": 2}),))
    )
    assert made.environment == path
    assert [task.family async for task in client.tasks("own")] == [path]
    with pytest.raises(InputError, match="No module named 'no_such_module'"):
        await client.create_pool(
            request("other").model_copy(update={"environment": "no_such_module:FAMILY"})
        )


async def test_generated_tasks_differ_and_no_heldout_one_is_trained_on(
    client: EnvAdapterClient,
) -> None:
    await client.create_pool(request(generate=generated(count=30, heldout=20)))
    tasks = [task async for task in client.tasks("kitchen")]
    assert [task.split for task in tasks] == ["heldout"] * 20 + ["train"] * 30
    assert len({json.dumps(task.params, sort_keys=True) for task in tasks}) == 50


async def test_every_bad_row_is_named_and_nothing_is_stored(client: EnvAdapterClient) -> None:
    rows = [
        {"params": game()},
        {"params": {**game(), "horizon": 0}},
        ["not", "an", "object"],
        {"params": game(), "spilt": "train"},
        {"params": 7},
        {"params": game(), "split": "test"},
    ]
    lines = "\n".join(map(json.dumps, rows)).encode()
    with pytest.raises(InputError) as caught:
        await client.upload_pool("bad", "household", lines)
    assert "5 of 6 rows are malformed, nothing was stored" in caught.value.detail
    starts = [problem.split(":")[0] for problem in caught.value.problems]
    assert starts == ["line 2", "line 3", "line 4", "line 5", "line 6"]
    assert "horizon" in caught.value.problems[0]
    assert "spilt" in caught.value.problems[2]
    assert await client.pools() == []


JSON = {"content-type": "application/json"}


def served(**reset: Any) -> dict[str, Any]:
    """Parameters that hold what their uploader likes."""
    return {"url": "http://192.0.2.1:80", "instruction": "play", "reset": reset}


@pytest.mark.parametrize("jsonl", [True, False])
async def test_what_could_not_be_shown_again_is_refused_row_by_row(
    http: httpx.AsyncClient, jsonl: bool
) -> None:
    deep = json.loads('{"a":' * 70 + "1" + "}" * 70)
    rows = [served(a="\\ud800"), served(a="\ud800"), served(**{"\udfff": 1}), served(a=deep)]
    if jsonl:
        lines = "\n".join(json.dumps({"params": row}) for row in rows)
        query = {"name": "bad", "environment": "openenv"}
        kind = {"content-type": "application/x-ndjson"}
        reply = await http.post("/v1/pools", content=lines, params=query, headers=kind)
    else:
        tasks = [{"params": row} for row in rows]
        body = json.dumps({"name": "bad", "environment": "openenv", "tasks": tasks})
        reply = await http.post("/v1/pools", content=body, headers=JSON)
    assert reply.status_code == 422
    first, second, third = reply.json()["problems"]
    assert "half a character" in first
    assert "half a character" in second
    assert "deeper than 64 levels" in third
    assert (await http.get("/v1/pools")).json()["items"] == []


async def test_a_long_list_of_bad_rows_ends_with_a_count(http: httpx.AsyncClient) -> None:
    body = {"name": "bad", "environment": "household", "tasks": [{"params": {}}] * 130}
    reply = await http.post("/v1/pools", json=body)
    problems = reply.json()["problems"]
    assert reply.status_code == 422
    assert problems[99].startswith("tasks[99]: ")
    assert problems[100:] == ["and 30 more"]


async def test_a_heldout_row_that_is_also_trained_on_is_named(client: EnvAdapterClient) -> None:
    upload = request(tasks=(TaskUpload(params=game()), TaskUpload(params=game(), split="heldout")))
    with pytest.raises(InputError, match=r"tasks\[1\]: the same task as tasks\[0\]"):
        await client.create_pool(upload)


async def test_options_that_no_episode_could_be_played_with_are_refused(
    client: EnvAdapterClient,
) -> None:
    request = PoolRequest(
        name="loud",
        environment="household",
        options={"wording": "loud"},
        generate=GenerateSpec(count=1),
    )
    with pytest.raises(InputError, match="wording"):
        await client.create_pool(request)
    assert await client.pools() == []


async def test_options_that_allow_too_few_tasks_say_so(client: EnvAdapterClient) -> None:
    lines = b"\n".join(json.dumps({"params": game()}).encode() for _ in range(2))
    with pytest.raises(InputError, match="no_such_option"):
        await client.create_pool(
            request(generate=GenerateSpec(count=1, options={"no_such_option": 1}))
        )
    # Equal rows of one split are the uploader's business.
    assert (await client.upload_pool("twice", "household", lines)).tasks["train"] == {"active": 2}


@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        (b"nonsense", "not JSON"),
        (b"[1]", "expected a JSON object"),
        (b'{"name": "x", "environment": "household", "tasks": 3}', "tasks: given int"),
        (b'{"name": "x", "environment": "household"}', "tasks: given 0"),
        (b'{"environment": "household"}', "name"),
        (b'{"name": "a/b", "environment": "household"}', "name"),
        (b'{"name": "x", "environment": "household", "colour": 1}', "colour"),
    ],
)
async def test_a_malformed_request_is_a_problem_document(
    http: httpx.AsyncClient, body: bytes, phrase: str
) -> None:
    reply = await http.post("/v1/pools", content=body, headers=JSON)
    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["type"] == "urn:triforge:input"
    assert phrase in reply.json()["detail"]


async def test_the_same_key_and_request_return_the_same_pool(http: httpx.AsyncClient) -> None:
    body = request(generate=generated()).model_dump(mode="json")
    headers = {"Idempotency-Key": "k-1"}
    first = await http.post("/v1/pools", json=body, headers=headers)
    again = await http.post("/v1/pools", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.headers["location"] == f"/v1/pools/{first.json()['id']}"
    body["name"] = "other"
    other = await http.post("/v1/pools", json=body, headers=headers)
    assert other.status_code == 409
    assert "k-1" in other.json()["detail"]


async def test_tasks_come_in_pages_and_by_filter(http: httpx.AsyncClient) -> None:
    body = request(generate=generated(count=5, heldout=2)).model_dump(mode="json")
    await http.post("/v1/pools", json=body)
    seen: list[str] = []
    cursor = ""
    while cursor is not None:
        page = await http.get(
            "/v1/pools/kitchen/tasks", params={"limit": 3, "cursor": cursor, "state": "active"}
        )
        seen += [task["id"] for task in page.json()["items"]]
        cursor = page.json()["next_cursor"]
    assert len(seen) == len(set(seen)) == 7
    trained = await http.get("/v1/pools/kitchen/tasks", params={"split": "train"})
    assert [task["id"] for task in trained.json()["items"]] == seen[2:]
    assert (await http.get("/v1/pools/kitchen/tasks?state=pending")).json()["items"] == []


@pytest.mark.parametrize(
    "query", ["cursor=nonsense", "cursor=train.1.99999999999", "limit=0", "limit=x", "state=odd"]
)
async def test_a_malformed_query_is_refused(http: httpx.AsyncClient, query: str) -> None:
    await http.post("/v1/pools", json=request(generate=generated()).model_dump(mode="json"))
    reply = await http.get(f"/v1/pools/kitchen/tasks?{query}")
    assert (reply.status_code, reply.json()["type"]) == (422, "urn:triforge:input")


async def test_a_plan_through_the_api_is_the_same_twice(client: EnvAdapterClient) -> None:
    await client.create_pool(request(generate=generated(count=6, heldout=2)))
    step = PlanRequest(run_id="r", step=0, kind="train", groups=3, seed=1)
    other = step.model_copy(update={"groups": 6, "seed": 9})
    first = await client.plan("kitchen", step)
    again = await client.plan("kitchen", other)
    held = await client.plan("kitchen", step.model_copy(update={"kind": "evaluate", "groups": 9}))
    assert first == again
    assert [group.purpose for group in first] == ["train"] * 3
    assert [group.purpose for group in held] == ["evaluate"] * 2
    with pytest.raises(NotFoundError):
        await client.plan("no", PlanRequest(run_id="r", step=1, kind="train", groups=1, seed=1))


async def test_a_database_that_is_away_is_a_503_with_retry_after(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/no/such/folder/store.sqlite")
    transport = httpx.ASGITransport(app=api(database), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://env") as http:
        plan = {"run_id": "r", "step": 0, "kind": "train", "groups": 1}
        replies = [
            await http.get("/v1/pools"),
            await http.get("/readyz"),
            await http.post("/v1/pools", json=request(generate=generated()).model_dump()),
            await http.post("/v1/pools/x/plans", json=plan),
        ]
        assert [reply.status_code for reply in replies] == [503] * 4
        assert all(int(reply.headers["retry-after"]) > 0 for reply in replies)
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/metrics")).status_code == 200
    database.close()


async def test_proposals_are_listed_counted_and_shown_as_metrics(
    http: httpx.AsyncClient, client: EnvAdapterClient, database: Database
) -> None:
    pool = await client.create_pool(request(generate=generated()))

    def proposal(name: str, **fields: Any) -> Proposal:
        return plain_proposal(name, pool_id=pool.id, **fields)

    with database.write() as session:
        session.add(new_row(proposal("a", state="invalid")))
        session.add(new_row(proposal("b", state="accepted", verdict="accepted")))
        session.add(new_row(proposal("c", state="rejected", verdict="accepted", null_control=True)))
    shown = await client.pool(pool.id)
    assert shown.proposals == {"invalid": 1, "accepted": 1}
    assert shown.null_control == {"accepted": 1}
    assert [p.id for p in await client.proposals(pool.name)] == ["a", "b", "c"]
    assert [p.id for p in await client.proposals(pool.name, state="invalid")] == ["a"]
    page = (await http.get(f"/v1/pools/{pool.id}/proposals?limit=2")).json()
    assert page["next_cursor"] == "b"
    rest = (await http.get(f"/v1/pools/{pool.id}/proposals?cursor=b")).json()
    assert [p["id"] for p in rest["items"]] == ["c"]
    assert (await http.get(f"/v1/pools/{pool.id}/proposals?state=odd")).status_code == 422
    text = (await http.get("/metrics")).text
    assert 'triforge_env_adapter_proposals{pool="kitchen",state="rejected"} 1.0' in text
