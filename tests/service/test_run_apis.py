"""The trainer's APIs, when what is asked makes no sense."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from services.trainer.app import create_app
from services.trainer.runs.runs import Runs
from services.trainer.runs.store import RunStore
from triforge.broker import Broker
from triforge.config import Settings
from triforge.errors import NotFoundError
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database
from triforge.types import Params, PoolState, Proposal


class NoPools:
    """An env_adapter without pools."""

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        raise NotFoundError(f"pool {pool!r} does not exist")

    async def proposals(self, pool: str, **wanted: str | None) -> list[Proposal]:
        return []

    async def check_pool(self, pool: str, options: Params) -> PoolState:
        raise NotFoundError(f"pool {pool!r} does not exist")


async def ready() -> None:
    """Always."""


@pytest.fixture
async def client(broker: Broker, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    database = open_database(f"sqlite:///{tmp_path}/store.sqlite")
    store = RunStore(database)
    store.create(name="r", pool_id="p", config={})
    runs = Runs(
        store=store, pools=NoPools(), broker=broker, artifacts=ArtifactStore(str(tmp_path)), settings=Settings(),
    )  # fmt: skip
    app = create_app(runs=runs, orchestrator=None, ready=ready)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://trainer") as opened:
        yield opened
    database.close()


@pytest.mark.parametrize("given", ["yesterday", "1-", "99999999999999999999999-0"])
async def test_an_event_id_that_no_stream_has_is_refused_before_the_stream_begins(
    client: httpx.AsyncClient, given: str
) -> None:
    [run] = (await client.get("/v1/runs")).json()["items"]
    reply = await client.get(f"/v1/runs/{run['id']}/events", headers={"Last-Event-ID": given})
    assert (reply.status_code, reply.json()["type"]) == (422, "urn:triforge:input")


@pytest.mark.parametrize("body", ["{bad", "[1,"])
async def test_a_body_that_is_no_json_is_rejected_as_such(
    client: httpx.AsyncClient, body: str
) -> None:
    reply = await client.post(
        "/v1/runs", content=body, headers={"content-type": "application/json"}
    )
    assert reply.status_code == 422
    assert reply.json()["detail"].startswith("body: not JSON: ")
