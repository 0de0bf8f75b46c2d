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
from tests.service.env_service import GAME, api, client_of, game
from triforge.cli.pools import read_pool, send_pool
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.errors import InputError, NotFoundError
from triforge.store.database import Database
from triforge.types import (
    GenerateSpec,
    PlanRequest,
    PoolRequest,
    PoolState,
    Proposal,
    TaskUpload,
)


@pytest.fixture
def app(database: Database) -> FastAPI:
    return api(database)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, raises=False) as client:
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
    other = game() | {"objects": {"mug 1": "shelf 1", "mug 2": "shelf 1"}}
    made = await client.create_pool(
        request(
            tasks=(TaskUpload(params=game()), TaskUpload(params=other, split="heldout")),
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
    checked = await client.check_pool(made.id, {"wording": "terse"})
    assert checked == made.model_copy(update={"shown": ("reference",)})
    with pytest.raises(InputError, match="household options: field colour: unknown, known are"):
        await client.check_pool("kitchen", {"colour": "blue"})
    with pytest.raises(NotFoundError):
        await client.check_pool("cellar", {})
    rewards = "environments.prompts.rewards"
    own = PoolRequest(
        name="sums",
        environment="prompts",
        options={"reward": f"{rewards}:exact"},
        tasks=(TaskUpload(params={"prompt": "2 + 2?", "columns": {"answer": "4"}}),),
    )
    sums = await client.create_pool(own)
    assert await client.check_pool("sums", {}) == sums.model_copy(update={"shown": ()})
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
    with pytest.raises(InputError, match=r"tasks\[1\]: asks the same as tasks\[0\]"):
        await client.create_pool(upload)
    lines = b"\n".join(json.dumps({"params": game()}).encode() for _ in range(2))
    # Equal rows of one split are the uploader's business.
    assert (await client.upload_pool("twice", "household", lines)).tasks["train"] == {"active": 2}


async def test_options_that_a_family_does_not_take_are_refused(client: EnvAdapterClient) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("wording", {"options": {"wording": "loud"}, "generate": generated()}),
        ("no_such_option", {"generate": GenerateSpec(count=1, options={"no_such_option": 1})}),
    ]
    for field, fields in cases:
        with pytest.raises(InputError, match=field):
            await client.create_pool(request(**fields))
    assert await client.pools() == []


@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        (b"nonsense", "not JSON"),
        (b"[1]", "expected a JSON object"),
        (b'{"name": "x", "environment": "household", "tasks": 3}', "tasks: given int"),
        (b'{"name": "x", "environment": "household"}', "tasks: given 0"),
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


async def test_tasks_come_in_pages_and_a_malformed_query_is_refused(
    http: httpx.AsyncClient,
) -> None:
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
    for query in ("cursor=nonsense", "cursor=train.1.99999999999", "limit=0", "state=odd"):
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
    async with client_of(api(database), raises=False) as http:
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


# ---- `triforge pool create` sends a file ----


async def create_from(client: EnvAdapterClient, file: Path) -> PoolState:
    return await send_pool(client, "kitchen", read_pool(file), environment="household")


async def test_json_and_jsonl_make_the_same_pool(client: EnvAdapterClient, tmp_path: Path) -> None:
    lines, body = tmp_path / "a.jsonl", tmp_path / "b.json"
    lines.write_text(json.dumps({"params": game()}))
    body.write_text(json.dumps({"tasks": [{"params": game()}]}))
    first = await create_from(client, lines)
    second = await send_pool(client, "other", read_pool(body), environment="household")
    assert first.tasks == second.tasks == {"train": {"active": 1}, "heldout": {}}
    assert first.environment == second.environment == "household"


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.jsonl", '{"params": 1}\n{oops\n\n{"params": {}}', ["line 1", "line 2", "line 4"]),
        ("a.jsonl", '{"params": 1}\n\n{"params": {}}', ["line 1", "line 3"]),
        ("a.json", '{"tasks": [{"params": 1}, {"params": {}}]}', ["tasks[0]", "tasks[1]"]),
    ],
)
async def test_every_bad_row_of_a_file_is_named_and_nothing_is_stored(
    client: EnvAdapterClient, tmp_path: Path, name: str, text: str, named: list[str]
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="rows are malformed, nothing was stored") as caught:
        await create_from(client, tmp_path / name)
    assert [problem.split(":")[0] for problem in caught.value.problems] == named
    assert await client.pools() == []
