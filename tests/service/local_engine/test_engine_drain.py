"""The local engine behind a real web server while it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from services.local_engine.app import create_app
from services.local_engine.engine import Engine
from tests.unit.local_engine.models import build_folder, new_engine
from tests.unit.local_engine.wire import body, generate, until
from triforge.web.server import DrainingServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder(tmp_path_factory.mktemp("models") / "first", seed=0)


@asynccontextmanager
async def serving(
    folder: Path, limit_s: float
) -> AsyncIterator[tuple[DrainingServer, Engine, httpx.AsyncClient]]:
    """A server in this loop, stopped at the end whatever happened."""
    engine = new_engine(folder)
    engine.start()
    app = create_app(engine=engine, served_name="tiny")
    config = uvicorn.Config(app, port=0, log_level="error")
    server = DrainingServer(config, lambda: engine.drain(limit_s))
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield server, engine, client
    finally:
        server.should_exit = True
        await task
        engine.stop()


async def test_a_server_that_is_told_to_stop_finishes_what_runs_and_refuses_what_is_new(
    folder: Path,
) -> None:
    async with serving(folder, limit_s=600) as (server, engine, client):
        await client.post("/pause_generation", json={"mode": "in_place"})
        sampling = {"max_new_tokens": 200, "ignore_eos": True}
        running = asyncio.create_task(generate(client, [5], sampling=sampling))
        await until(lambda: engine.load()["num_waiting_reqs"] == 1)
        server.handle_exit(signal.SIGTERM, None)
        await until(lambda: not engine.ready)
        refused = await client.post("/generate", json=body([5]))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "shutting down" in refused.json()["message"]
        probes = [(await client.get(path)).status_code for path in ("/ready", "/health")]
        assert probes == [503, 503]
        assert (await client.post("/continue_generation", json={})).status_code == 200
        assert len((await running)["output_ids"]) == 200
        await until(lambda: server.should_exit)


async def test_what_still_runs_when_the_time_is_over_comes_back_aborted(folder: Path) -> None:
    async with serving(folder, limit_s=0) as (server, engine, client):
        await client.post("/pause_generation", json={"mode": "in_place"})
        running = asyncio.create_task(generate(client, [5]))
        await until(lambda: engine.load()["num_waiting_reqs"] == 1)
        server.handle_exit(signal.SIGTERM, None)
        assert (await running)["meta_info"]["finish_reason"]["type"] == "abort"
        await until(lambda: server.should_exit)


async def test_a_second_signal_stops_at_once(folder: Path) -> None:
    async with serving(folder, limit_s=600) as (server, engine, client):
        await client.post("/pause_generation", json={"mode": "in_place"})
        running = asyncio.create_task(client.post("/generate", json=body([5])))
        await until(lambda: engine.load()["num_waiting_reqs"] == 1)
        server.handle_exit(signal.SIGTERM, None)
        assert not server.should_exit
        server.handle_exit(signal.SIGINT, None)
        assert server.should_exit
        await engine.abort(None)
        await running
