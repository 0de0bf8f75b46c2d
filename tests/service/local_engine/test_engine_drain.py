"""The local engine behind a real web server: callers that leave, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from services.local_engine.__main__ import main
from services.local_engine.app import create_app
from services.local_engine.engine import Engine
from tests.unit.local_engine.models import new_engine
from tests.unit.local_engine.wire import body, generate, until
from triforge.web.server import config_of


@asynccontextmanager
async def serving(
    folder: Path, limit_s: int
) -> AsyncIterator[tuple[uvicorn.Server, Engine, httpx.AsyncClient]]:
    """A server in this loop, stopped at the end whatever happened."""
    engine = new_engine(folder)
    engine.start()
    app = create_app(engine=engine, served_name="tiny")
    server = uvicorn.Server(config_of(app, "127.0.0.1", 0, timeout_graceful_shutdown=limit_s))
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


async def test_a_server_that_is_stopped_finishes_running_requests(folder: Path) -> None:
    async with serving(folder, limit_s=60) as (server, engine, client):
        await client.post("/pause_generation", json={"mode": "in_place"})
        sampling = {"max_new_tokens": 200, "ignore_eos": True}
        running = asyncio.create_task(generate(client, [5], sampling=sampling))
        await until(lambda: len(engine.scheduler.waiting) == 1)
        server.should_exit = True
        await until(lambda: not server.servers[0].is_serving())
        await engine.resume()
        assert len((await running)["output_ids"]) == 200


async def test_a_request_that_outlives_the_grace_period_is_aborted(folder: Path) -> None:
    async with serving(folder, limit_s=1) as (server, engine, client):
        await client.post("/pause_generation", json={"mode": "in_place"})
        running = asyncio.create_task(client.post("/generate", json=body([5])))
        await until(lambda: len(engine.scheduler.waiting) == 1)
        server.should_exit = True
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: len(engine.scheduler.waiting) == 0)


async def test_a_caller_that_leaves_frees_its_place(folder: Path) -> None:
    async with serving(folder, limit_s=60) as (_, engine, client):
        await client.post("/pause_generation", json={"mode": "in_place"})
        asked = asyncio.create_task(client.post("/generate", json=body([5])))
        await until(lambda: len(engine.scheduler.waiting) == 1)
        asked.cancel()
        await until(lambda: len(engine.scheduler.waiting) == 0)


def test_a_folder_without_a_model_ends_the_program_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["--model-path", str(tmp_path)]) == 2
    assert "config.json does not exist" in caplog.text
