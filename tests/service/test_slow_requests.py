"""A request that does not arrive is closed; a client that waits for the service is never late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from triforge.web.server import PatientProtocol, config_of

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
SLOW_S = 0.2  # longer than the protocol waits
LEAST = 1000


class Hasty(PatientProtocol):
    wait_s = 0.1
    body_least = LEAST


class Service:
    """An app that reads its body, and answers when it may."""

    def __init__(self) -> None:
        self.may_read, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_read.set()

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        await self.may_read.wait()
        more = not self.may_answer.is_set()
        while more:
            more = (await receive()).get("more_body", False)
        await self.may_answer.wait()
        length = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def client(
    service: Service,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    options = {"http": Hasty, "lifespan": "off", "log_level": "critical"}
    server = uvicorn.Server(config_of(service, "127.0.0.1", 0, **options))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    yield reader, writer
    writer.close()
    server.force_exit = server.should_exit = True
    await task


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection, with no answer before."""
    try:
        return await asyncio.wait_for(reader.read(1), SLOW_S * 2) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"P",
        b"POST / HTTP/1.1\r\nA: b\r\n",
        HEAD + b"a",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
    ],
)
async def test_a_request_that_does_not_arrive_is_closed(client: Any, given: bytes) -> None:
    reader, writer = client
    writer.write(given)
    assert await is_closed(reader)


async def test_slow_headers_are_closed(client: Any) -> None:
    reader, writer = client
    for byte in HEAD[:8]:
        writer.write(bytes([byte]))
        await asyncio.sleep(SLOW_S / 8)
    assert await is_closed(reader)


async def test_a_slow_and_steady_body_is_read(client: Any) -> None:
    reader, writer = client
    writer.write(HEAD)
    for _ in range(20):
        writer.write(b"a" * LEAST)
        await asyncio.sleep(SLOW_S / 8)
    assert not reader.at_eof()
    assert await is_closed(reader)  # now that nothing comes


async def test_a_client_that_waits_for_the_service_is_never_late(
    client: Any, service: Service
) -> None:
    reader, writer = client
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert not await is_closed(reader)
    service.may_answer.set()
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_a_body_that_the_service_does_not_read_is_not_the_clients_fault(
    client: Any, service: Service
) -> None:
    service.may_read.clear()
    reader, writer = client
    writer.write(HEAD + b"a" * 100_000)
    assert not await is_closed(reader)


async def test_a_client_that_waits_for_100_continue_is_not_late(
    client: Any, service: Service
) -> None:
    service.may_read.clear()
    reader, writer = client
    writer.write(HEAD.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
    assert not await is_closed(reader)
    service.may_read.set()
    assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
