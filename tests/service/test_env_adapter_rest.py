"""Pools, tasks and rewrites as people change them over HTTP, and the walk-through of docs/train.md#over-rest as it is written."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import select

from tests.service.env_service import api, client_of, game, rewrite, served
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.errors import UnavailableError
from triforge.store.database import Database
from triforge.store.tables import Base
from triforge.testing import FakeFamily
from triforge.types import (
    Lineage,
    PlanRequest,
    PoolState,
    ProposalDetail,
    TaskDetail,
)

REST = (Path(__file__).parents[2] / "docs" / "train.md").read_text(encoding="utf-8")
LINES = {"content-type": "application/x-ndjson"}


@pytest.fixture
def app(database: Database) -> FastAPI:
    return api(database)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


def lines(count: int, first: int = 20) -> bytes:
    rows = [{"params": game(first + index)} for index in range(count)]
    return "\n".join(map(json.dumps, rows)).encode()


async def upload(http: httpx.AsyncClient, body: Any, name: str = "p", **headers: str) -> Any:
    query = {"name": name, "environment": "household"}
    return await http.post("/v1/pools", params=query, content=body, headers={**LINES, **headers})


@pytest.fixture
async def task(http: httpx.AsyncClient) -> str:
    """The first task of a pool `p` of three."""
    assert (await upload(http, lines(3))).status_code == 201
    return str((await http.get("/v1/pools/p/tasks")).json()["items"][0]["id"])


async def problem_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of an answer."""
    assert (reply.status_code, reply.headers["content-type"]) == (
        status, "application/problem+json",
    )  # fmt: skip
    found: dict[str, Any] = reply.json()
    assert found["status"] == status
    return found


# ---- uploads ----


async def test_one_bad_row_among_ten_thousand_is_named_and_nothing_is_stored(
    database: Database,
) -> None:
    app = api(database, family=lambda _: FakeFamily())
    http = client_of(app)
    rows = [b'{"params": {"target": 3}}'] * 10_000
    rows[6_543] = b'{"params": {"colour": "blue"}}'
    document = await problem_of(await upload(http, b"\n".join(rows)), 422)
    assert document["detail"].startswith("1 of 10000 rows are malformed, nothing was stored")
    (problem,) = document["problems"]
    assert problem.startswith("line 6544: ")
    assert (await http.get("/v1/pools")).json()["items"] == []
    assert (await upload(http, b"\n".join(rows[:6_543]))).status_code == 201


async def test_a_large_upload_is_not_held_in_memory(database: Database) -> None:
    padding = b" " * 100_000  # white space: the tasks are small, their upload is 50 MB

    async def body() -> AsyncIterator[bytes]:
        for index in range(500):
            yield lines(1, first=20 + index % 5) + padding + b"\n"

    transport = httpx.ASGITransport(app=api(database))
    async with httpx.AsyncClient(transport=transport, base_url="http://env", timeout=60) as http:
        tracemalloc.start()
        try:
            reply = await upload(http, body())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert reply.json()["tasks"]["train"] == {"active": 500}
    assert peak < 25 * 2**20


async def test_clients_that_race_for_a_key_get_one_pool_and_for_a_name_one_wins(
    http: httpx.AsyncClient,
) -> None:
    key = {"Idempotency-Key": "k"}
    same = await asyncio.gather(*(upload(http, lines(20), **key) for _ in range(4)))
    assert sorted(reply.status_code for reply in same) == [200, 200, 200, 201]
    assert len({reply.text for reply in same}) == 1
    assert {reply.headers.get("location") for reply in same} >= {
        f"/v1/pools/{same[0].json()['id']}"
    }
    document = await problem_of(await upload(http, lines(21), **key), 409)
    assert "Idempotency-Key 'k' was used for another request" in document["detail"]
    named = await asyncio.gather(*(upload(http, lines(20), name="q") for _ in range(4)))
    assert sorted(reply.status_code for reply in named) == [201, 409, 409, 409]


async def test_nothing_is_stored_that_is_longer_than_its_column(
    http: httpx.AsyncClient, database: Database, task: str
) -> None:
    # SQLite would take it, PostgreSQL would not.
    rewrite(database, task, "awaiting")
    await http.post("/v1/proposals/prop-g/approve", json={"by": "d" * 200})
    await http.post(f"/v1/tasks/{task}/rollback", json={"to": task, "by": "d" * 200})
    with database.read() as session:
        for table in Base.metadata.tables.values():
            for row in session.execute(select(table)).mappings():
                for column in table.columns:
                    longest = getattr(column.type, "length", None)
                    stored = row[column.name]
                    if longest is not None and stored is not None:
                        assert len(stored) <= longest, f"{table.name}.{column.name}"


# ---- lists and exports ----


async def test_tasks_are_found_by_words_split_and_state(
    http: httpx.AsyncClient, database: Database, task: str
) -> None:
    rewrite(database, task, "awaiting")
    await http.post(f"/v1/tasks/{task}/pin")

    async def count(**query: Any) -> int:
        reply = await http.get("/v1/pools/p/tasks", params=query)
        return len(reply.json()["items"])

    assert await count() == 4
    assert [await count(search=words) for words in ("MUG", "100%", "m_g")] == [3, 0, 0]
    assert [await count(split=split) for split in ("train", "heldout")] == [4, 0]
    assert [await count(state=state) for state in ("active", "rejected")] == [3, 1]


async def test_an_exported_pool_makes_the_same_pool_again_without_retired_tasks(
    http: httpx.AsyncClient, database: Database, task: str
) -> None:
    rewrite(database, task, "awaiting")
    exported = await http.get("/v1/pools/p/export")
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    assert (await upload(http, exported.content, name="q")).status_code == 201
    assert (await http.get("/v1/pools/q/export")).text == exported.text
    assert len(exported.text.splitlines()) == 3
    assert (await http.get("/v1/pools/p/export?split=heldout")).text == ""
    await problem_of(await http.get("/v1/pools/none/export"), 404)
    ids = [t["id"] for t in (await http.get("/v1/pools/q/tasks")).json()["items"]]
    await http.post(f"/v1/tasks/{ids[0]}/pause")
    await http.post(f"/v1/tasks/{ids[1]}/retire")
    assert len((await http.get("/v1/pools/q/export")).text.splitlines()) == 2


# ---- changes ----


async def test_a_change_may_be_repeated_and_its_author_is_logged(
    http: httpx.AsyncClient, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(2):
        reply = await http.post(
            f"/v1/tasks/{task}/pin", json={"by": "dana", "reason": "well known"}
        )
        assert TaskDetail.model_validate(reply.json()).task.pinned
    assert f"task {task}: pin by dana: well known" in caplog.text
    reply = await http.post(f"/v1/tasks/{task}/unpin")
    assert not TaskDetail.model_validate(reply.json()).task.pinned


async def test_the_orchestrator_waits_for_a_paused_pool(
    app: FastAPI, http: httpx.AsyncClient, task: str
) -> None:
    await http.post("/v1/pools/p/pause")
    client = EnvAdapterClient("http://env", transport=httpx.ASGITransport(app=app))
    step = PlanRequest(run_id="r", step=1, kind="train", groups=2, seed=1)
    document = await problem_of(await http.post("/v1/pools/p/plans", json=step.model_dump()), 409)
    assert document["type"] == "urn:triforge:paused"
    with pytest.raises(UnavailableError, match="'p' is paused"):
        await client.plan("p", step)
    await http.post("/v1/pools/p/resume")
    assert len(await client.plan("p", step)) == 2
    await client.close()


async def test_a_waiting_rewrite_is_read_approved_and_rolled_back(
    http: httpx.AsyncClient, database: Database, task: str
) -> None:
    proposal = rewrite(database, task, "awaiting")
    path = f"/v1/proposals/{proposal.id}"
    shown = ProposalDetail.model_validate((await http.get(path)).json())
    assert shown.proposal == proposal
    for _ in range(2):
        reply = await http.post(f"{path}/approve", json={"by": "dana"})
        decided = ProposalDetail.model_validate(reply.json())
        assert decided.proposal.state == "accepted"
        assert "accepted by hand by dana" in decided.proposal.reason
    await problem_of(await http.post(f"{path}/reject"), 409)
    back = await http.post(f"/v1/tasks/{task}/rollback", json={"to": task})
    assert back.json()["task"]["id"] == f"{task}-v2"
    lineage = Lineage.model_validate((await http.get(f"/v1/tasks/{task}/lineage")).json())
    assert [v.task.state for v in lineage.versions] == ["replaced", "rolled_back", "active"]


async def test_people_who_decide_at_once_decide_once(
    http: httpx.AsyncClient, database: Database, task: str
) -> None:
    proposal = rewrite(database, task, "awaiting")
    replies = await asyncio.gather(
        *(
            http.post(f"/v1/proposals/{proposal.id}/{decision}")
            for decision in ("approve", "reject") * 4
        )
    )
    assert sorted(reply.status_code for reply in replies) == [200] * 4 + [409] * 4
    states = {
        v["task"]["state"] for v in (await http.get(f"/v1/tasks/{task}/lineage")).json()["versions"]
    }
    assert states in ({"replaced", "active"}, {"active", "rejected"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/pools/none/pause", None, 404),
        ("PATCH", "/v1/pools/none", {"approval": "manual"}, 404),
        ("PATCH", "/v1/pools/p", {"approval": "sometimes"}, 422),
        ("POST", "/v1/tasks/none/pin", None, 404),
        ("POST", "/v1/proposals/none/approve", None, 404),
        ("GET", "/v1/pools/p/proposals?cursor=x", None, 422),
        ("GET", "/v1/pools/p/export?split=all", None, 422),
        ("DELETE", "/v1/pools/p", None, 405),
    ],
)
async def test_what_cannot_be_is_a_problem_document(
    http: httpx.AsyncClient, task: str, method: str, path: str, body: Any, status: int
) -> None:
    await problem_of(await http.request(method, path, json=body), status)


# ---- the walk-through ----


@pytest.mark.skipif(shutil.which("curl") is None, reason="the walk-through is written for curl")
async def test_the_walk_through_works_as_written(
    app: FastAPI, database: Database, tmp_path: Path
) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```$", REST, re.MULTILINE | re.DOTALL)
    first, second = blocks[0], blocks[-1]
    made = re.search(r"^curl [^\n]*8003/v1/pools -H \"\$JSON\" -d '.*?'$", first, re.M | re.S)
    taken = re.search(r"^TASK=.*?\)$", first, re.MULTILINE | re.DOTALL)
    assert made
    assert taken
    script = 'set -e\nJSON="Content-Type: application/json"\n{}\necho\n{}\n{}\n'
    with served(app) as url:

        def play(text: str) -> list[Any]:
            """Run a script and return the answers of its calls."""
            text = text.replace("http://127.0.0.1:8003", url)
            text = text.replace("curl -s ", "curl -sS -w '\\n' ")
            done = subprocess.run(
                ["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, "")
            return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]

        (pool,) = await asyncio.to_thread(play, script.format(made[0], "", ""))
        assert PoolState.model_validate(pool).tasks["train"] == {"active": 64}
        tasks = (
            await asyncio.to_thread(httpx.get, f"{url}/v1/pools/kitchen/tasks?split=train")
        ).json()
        rewrite(database, tasks["items"][5]["id"], "awaiting")
        answers = await asyncio.to_thread(play, script.format(taken[0], "", second))
    problems = [answer for answer in answers if str(answer.get("type", "")).startswith("urn:")]
    assert problems == []
    approved, rolled, lineage, again = answers[-4:]
    assert approved["proposal"]["state"] == "accepted"
    assert rolled["task"]["version"] == 2
    assert [v["task"]["state"] for v in lineage["versions"]] == [
        "replaced", "rolled_back", "active",
    ]  # fmt: skip
    assert again["tasks"] == {"train": {"active": 64}, "heldout": {"active": 32}}
