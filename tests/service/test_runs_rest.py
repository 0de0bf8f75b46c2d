"""Runs over REST as users type them: submit, watch, stop, resume, export, and every refusal a problem document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from sqlalchemy.exc import StatementError

from services.trainer.app import create_app
from services.trainer.runs.runs import MAX_CONFIG, Runs
from services.trainer.runs.store import RunStore
from tests.contract.test_messages import EXAMPLES
from tests.service.fake_loop import CONFIG, Loop
from triforge.broker import Broker, RedisBroker
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings, parse
from triforge.errors import ConflictError, NotFoundError, UnavailableError
from triforge.store.step_records import read_origin
from triforge.store.tables import RunRow
from triforge.supervisor.ports import free_port
from triforge.types import Params, PoolState, Proposal, ProposalDetail, RunStep

BASE = """
[run]
steps = 7
name = "from the deployment"
[models.policy]
path = "/models/policy"
[models.reward]
path = "/models/reward"
[models.rewriter]
path = "/models/rewriter"
"""


def with_models(text: str, folder: Path) -> str:
    """A document or config whose model folders are there, below another folder."""
    for role in ("policy", "reward", "rewriter"):
        (folder / "models" / role).mkdir(parents=True, exist_ok=True)
        (folder / "models" / role / "config.json").write_text("{}")
    return text.replace("/models/", f"{folder}/models/")


class FakePools:
    """env_adapter, which knows one pool."""

    def __init__(self) -> None:
        self.away = False

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        if self.away:
            raise UnavailableError("env_adapter does not answer", retry_after_s=3.0)
        if pool not in ("pool-1", "kitchen"):
            raise NotFoundError(f"pool {pool!r} does not exist")
        return PoolState(
            id="pool-1", name="kitchen", environment="fake", created_at=0.0,
            tasks={"train": {"active": 64}}, proposals={},
        )  # fmt: skip

    async def check_pool(self, pool: str, options: Params) -> PoolState:
        return await self.pool("kitchen")

    async def proposals(self, pool: str, **wanted: str | None) -> list[Proposal]:
        text = (EXAMPLES / "ProposalDetail.json").read_text(encoding="utf-8")
        made = ProposalDetail.model_validate_json(text).proposal
        return [made.model_copy(update={"pool_id": pool, "run_id": wanted["run_id"]})]


class Api:
    """The trainer's application, called in this process."""

    def __init__(self, loop: Loop, broker: Broker, settings: Settings, *, conducts: bool) -> None:
        self.pools = FakePools()
        runs = Runs(
            store=loop.store, pools=self.pools, broker=broker, artifacts=loop.artifacts, settings=settings
        )  # fmt: skip

        async def ready() -> None:
            await broker.ping()

        orchestrator = loop.orchestrator() if conducts else None
        self.app = create_app(runs=runs, orchestrator=orchestrator, ready=ready)
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://trainer")
        self.client = TrainerClient("http://trainer", transport=transport)

    async def close(self) -> None:
        await self.http.aclose()
        await self.client.close()


@pytest.fixture
async def api(loop: Loop, broker: Broker, tmp_path: Path) -> AsyncIterator[Api]:
    """The routes, without an orchestrator."""
    document = tmp_path / "base.toml"
    document.write_text(with_models(BASE, tmp_path))
    made = Api(loop, broker, Settings(config=str(document)), conducts=False)
    yield made
    await made.close()


@pytest.fixture
async def trainer(loop: Loop, broker: Broker) -> AsyncIterator[Api]:
    """The whole service: the orchestrator works while the application is up."""
    made = Api(loop, broker, Settings(), conducts=True)
    async with made.app.router.lifespan_context(made.app):
        yield made
    await made.close()


def problem(reply: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The problem document of a refusal."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = reply.json()
    assert (body["status"], body["type"]) == (status, f"urn:triforge:{kind}")
    assert body["title"]
    assert body["detail"]
    return body


# ---- submit ----


async def test_a_run_is_laid_over_the_deployments_document(api: Api) -> None:
    body = {"pool": "kitchen", "name": "mine", "config": {"reward": {"votes": 2}}}
    reply = await api.http.post("/v1/runs", json=body)
    assert reply.status_code == 201
    run = reply.json()
    assert (run["status"], run["step"], run["steps"], run["pool_id"]) == ("queued", -1, 7, "pool-1")
    assert (run["name"], run["config"]["run"]["name"]) == ("mine", "mine")
    assert run["config"]["reward"]["votes"] == 2
    assert run["config"]["models"]["policy"]["path"].endswith("/models/policy")
    assert (await api.http.get(f"/v1/runs/{run['id']}")).json() == run
    unnamed = await api.http.post("/v1/runs", json={"pool": "pool-1"})
    assert unnamed.json()["name"] == "from the deployment"
    listed = (await api.http.get("/v1/runs")).json()["items"]
    assert [r["name"] for r in listed] == ["from the deployment", "mine"]


async def test_runs_come_in_pages_newest_first_and_new_ones_disturb_no_page(
    api: Api, loop: Loop
) -> None:
    made = [(await api.client.submit("kitchen", name=f"r{number}")).id for number in range(5)]
    for number, run_id in enumerate(made):  # two of one moment among them: their ids decide
        with loop.store._db.write() as session:
            session.get_one(RunRow, run_id).created_at = float((0, 1, 2, 2, 3)[number])
    wanted = [made[4], *sorted(made[2:4], reverse=True), made[1], made[0]]
    seen: list[str] = []
    cursor: str | None = ""
    for size in (2, 2, 1):
        page = (await api.http.get("/v1/runs", params={"limit": 2, "cursor": cursor})).json()
        assert len(page["items"]) == size
        seen += [run["id"] for run in page["items"]]
        cursor = page["next_cursor"]
        await api.client.submit("kitchen", name="a newer one")
    assert (seen, cursor) == (wanted, None)
    assert [run.id for run in await api.client.runs()][3:] == wanted
    assert len(await api.client.runs(newest=4)) == 4
    for query in ({"cursor": "run-nowhere"}, {"limit": 0}, {"limit": 1001}):
        problem(await api.http.get("/v1/runs", params=query), 422, "input")


async def test_an_idempotency_key_makes_one_run_of_two_requests(api: Api) -> None:
    first, second = await asyncio.gather(
        *(api.client.submit("kitchen", config={"run": {"steps": 3}}, key="k") for _ in range(2))
    )
    assert first == second
    assert len(await api.client.runs()) == 1
    with pytest.raises(ConflictError, match="idempotency key 'k' was used for another run"):
        await api.client.submit("kitchen", config={"run": {"steps": 4}}, key="k")
    assert (await api.client.submit("kitchen", key="other")).id != first.id


def options(value: Any) -> dict[str, Any]:
    return {"config": {"env_adapter": {"options": {"wording": value}}}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"config": {"run": {"steps": -1}}}, "run.steps: given -1"),
        ({"config": {"rnu": {}}}, "rnu: unknown field"),
        ({"colour": 1}, "colour: unknown field"),
        ({"pool": ""}, "pool"),
        # what could not be shown again
        (options("\ud800"), "half a character"),
        ({"name": "\udfff"}, "half a character"),
        (options(json.loads('{"a":' * 70 + "1" + "}" * 70)), "deeper than 64 levels"),
        (options("x" * MAX_CONFIG), "characters of JSON"),
        ({"config": {"models": {"policy": {"path": "/models/\x00"}}}}, "a character 0"),
        ({"name": "n" * 201}, "at most 200 characters"),
        ({"config": {"run": {"name": "n" * 201}}}, "at most 200 characters"),
    ],
)
async def test_an_impossible_run_is_refused_and_not_stored(
    api: Api, body: dict[str, Any], words: str
) -> None:
    given = json.dumps({"pool": "kitchen", **body})
    json_body = {"content-type": "application/json"}
    reply = await api.http.post("/v1/runs", content=given, headers=json_body)
    assert (reply.status_code, reply.headers["content-type"]) == (422, "application/problem+json")
    assert words in reply.json()["detail"]
    assert await api.client.runs() == []


async def test_a_run_is_refused_for_now_while_env_adapter_is_away(api: Api) -> None:
    api.pools.away = True
    reply = await api.http.post("/v1/runs", json={"pool": "kitchen"})
    assert problem(reply, 503, "unavailable")["retry_after_s"] == 3.0
    assert reply.headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""), ("GET", "/steps"), ("GET", "/events"), ("GET", "/export"), ("POST", "/stop"),
        ("POST", "/resume"),
    ],
)  # fmt: skip
async def test_every_api_of_an_unknown_run_says_so(api: Api, method: str, path: str) -> None:
    found = problem(await api.http.request(method, f"/v1/runs/run-0{path}"), 404, "not_found")
    assert "run-0" in found["detail"]


# ---- steps, stop and resume ----


def _commit(store: RunStore, run_id: str, count: int) -> None:
    for step in range(count):
        record = RunStep(
            run_id=run_id, step=step, at=1.0, policy_version=step + 1, reward_version=1,
            metrics={"success": 0.25}, artifacts={},
        )  # fmt: skip
        assert store.commit_step(record)


async def test_steps_come_in_order_in_pages(api: Api, loop: Loop) -> None:
    run = await api.client.submit("kitchen")
    _commit(loop.store, run.id, 5)
    assert [s.step for s in await api.client.steps(run.id)] == [0, 1, 2, 3, 4]
    page = (await api.http.get(f"/v1/runs/{run.id}/steps?after=1&limit=2")).json()
    assert [(s["step"], s["policy_version"], s["metrics"]) for s in page["items"]] == [
        (2, 3, {"success": 0.25}),
        (3, 4, {"success": 0.25}),
    ]
    further = f"/v1/runs/{run.id}/steps?after=1&limit=2&cursor={page['next_cursor']}"
    last = (await api.http.get(further)).json()
    assert ([s["step"] for s in last["items"]], last["next_cursor"]) == ([4], None)
    for query in ("after=-2", f"after={10**30}", "limit=0", "limit=x"):
        problem(await api.http.get(f"/v1/runs/{run.id}/steps?{query}"), 422, "input")


async def test_committing_a_step_twice_is_committing_it_once(api: Api, loop: Loop) -> None:
    run = await api.client.submit("kitchen")
    _commit(loop.store, run.id, 1)
    again = RunStep(
        run_id=run.id, step=0, at=2.0, policy_version=9, reward_version=9, metrics={}, artifacts={}
    )  # fmt: skip
    assert not loop.store.commit_step(again)
    assert [s.policy_version for s in await api.client.steps(run.id)] == [1]
    assert (await api.client.run(run.id)).policy_version == 1


async def test_a_step_and_its_runs_move_are_one_transaction(api: Api, loop: Loop) -> None:
    run = await api.client.submit("kitchen")
    fine = RunStep(
        run_id=run.id, step=0, at=1.0, policy_version=1, reward_version=1, metrics={}, artifacts={}
    )  # fmt: skip
    with pytest.raises(NotFoundError):
        loop.store.commit_step(fine.model_copy(update={"run_id": "run-0"}))
    with pytest.raises(StatementError, match="not JSON serializable"):  # fails after the run moved
        loop.store.commit_step(fine.model_copy(update={"metrics": {"success": object()}}))
    assert await api.client.steps(run.id) == []
    assert await api.client.run(run.id) == run


async def test_a_run_is_stopped_and_resumed_and_both_only_when_that_makes_sense(api: Api) -> None:
    run = await api.client.submit("kitchen")
    problem(await api.http.post(f"/v1/runs/{run.id}/resume"), 409, "conflict")
    stopped = await api.http.post(f"/v1/runs/{run.id}/stop")
    assert (stopped.status_code, stopped.json()["status"]) == (202, "stopped")
    found = problem(await api.http.post(f"/v1/runs/{run.id}/stop"), 409, "conflict")
    assert "only a queued or running run can be stopped" in found["detail"]
    assert (await api.client.resume(run.id)).status == "queued"


# ---- the whole service ----


async def test_a_run_is_watched_to_its_end_and_exported(trainer: Api, tmp_path: Path) -> None:
    run = await trainer.client.submit(
        "kitchen", config=json.loads(with_models(json.dumps(CONFIG), tmp_path))
    )
    seen = [
        (event.kind, event.step)
        async for _, event in trainer.client.events(run.id)
        if event.kind != "group"
    ]
    assert seen == [
        ("run", -1), ("evaluation", 0), ("step", 0), ("step", 1), ("evaluation", 2), ("step", 2),
        ("run", 2),
    ]  # fmt: skip
    ended = await trainer.client.run(run.id)
    assert (ended.status, ended.verdict and ended.verdict.word) == ("finished", "not told apart")
    await expect_events(trainer.http, run.id)
    path = tmp_path / "run.parquet"
    await trainer.client.export(run.id, path)
    await trainer.client.export(run.id, tmp_path / "one.parquet", step=1)
    assert set(pq.read_table(tmp_path / "one.parquet").column("step").to_pylist()) == {1}
    problem(await trainer.http.get(f"/v1/runs/{run.id}/export?step=9"), 404, "not_found")
    origin = read_origin(path)
    assert parse(origin["config"]).env_adapter.rollouts == 2
    assert {step: numbers["trust"] for step, numbers in origin["steps"].items()} == {"1": 0, "2": 0}
    (proposal,) = origin["proposals"]
    assert (proposal["run_id"], proposal["verdict"]) == (run.id, "accepted")
    assert "prompt" not in proposal
    rows = pq.read_table(path).to_pylist()
    trained = [row for row in rows if row["purpose"] != "evaluate"]
    assert [row["step"] for row in trained] == [1] * 8 + [2] * 8
    assert {row["run_id"] for row in rows} == {run.id}
    for step in await trainer.client.steps(run.id):
        ended = {
            row["trajectory_id"]: row["outcome"]
            for row in rows
            if row["purpose"] == "evaluate" and row["step"] == step.step
        }
        sampled = [v for name, v in ended.items() if "-sampled-" in name and v is not None]
        assert len(sampled) == step.metrics.get("eval/sampled_episodes", 0)
        if sampled:  # the figure can be recomputed from the record
            assert step.metrics["eval/sampled"] == sampled.count(1) / len(sampled)


async def expect_events(http: httpx.AsyncClient, run_id: str) -> None:
    """Events are server-sent, and can be taken up after any of them."""
    url = f"/v1/runs/{run_id}/events"
    text = (await http.get(url)).text
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    fields = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    assert [f["event"] for f in fields][-2:] == ["step", "run"]
    assert all(json.loads(f["data"])["run_id"] == run_id for f in fields)
    third = fields[2]["id"]
    for headers, query in (({"Last-Event-ID": third}, ""), ({}, f"?after={third}")):
        rest = (await http.get(url + query, headers=headers)).text
        assert [line[4:] for line in rest.splitlines() if line.startswith("id: ")] == [
            f["id"] for f in fields[3:]
        ]
    for never in ("yesterday", "1-", "99999999999999999999999-0"):
        problem(await http.get(f"{url}?after={never}"), 422, "input")


async def test_a_run_without_a_training_step_has_nothing_to_export(api: Api, loop: Loop) -> None:
    run = await api.client.submit("kitchen")
    _commit(loop.store, run.id, 1)
    problem(await api.http.get(f"/v1/runs/{run.id}/export"), 409, "conflict")


# ---- health ----


async def test_without_redis_the_service_is_alive_but_not_ready_and_events_are_refused_for_now(
    loop: Loop,
) -> None:
    away = RedisBroker(f"redis://127.0.0.1:{free_port()}/0")
    api = Api(loop, away, Settings(), conducts=False)
    try:
        assert (await api.http.get("/healthz")).status_code == 200
        run = loop.submit()
        for path in ("/readyz", f"/v1/runs/{run.id}/events"):
            reply = await api.http.get(path)
            problem(reply, 503, "unavailable")
            assert int(reply.headers["retry-after"]) >= 1
        assert (await api.http.get(f"/v1/runs/{run.id}")).status_code == 200
    finally:
        await api.close()
        await away.close()
