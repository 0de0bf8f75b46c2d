"""Hostile requests to a service's server: endless headers, no HTTP at all, forged addresses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry

from triforge.web.app import install
from triforge.web.limits import Bounds
from triforge.web.server import MAX_HEAD, config_of


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = FastAPI()
    install(app, registry=CollectorRegistry(), bounds=Bounds(10**6))

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.get("/who")
    async def who(request: Request) -> str:
        return request.client.host if request.client else ""

    server = uvicorn.Server(config_of(app, "127.0.0.1", 0, log_level="critical", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


async def send(port: int, *parts: bytes) -> bytes:
    """Everything that comes back until the server closes or the first answer is whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(65536), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def alive(port: int) -> bool:
    return (await send(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(
        b"HTTP/1.1 200"
    )


@pytest.mark.parametrize(
    "head",
    [
        b"GET /who HTTP/1.1\r\nHost: x\r\nA: " + b"a" * (2 * MAX_HEAD),
        b"GET /" + b"a" * (2 * MAX_HEAD),
        b"GET /who HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEAD // 3),
    ],
)
async def test_headers_that_do_not_end_are_refused(port: int, head: bytes) -> None:
    assert (await send(port, head)).startswith(b"HTTP/1.1 400")
    assert await alive(port)


async def test_a_body_that_comes_with_its_headers_counts_for_the_body_only(port: int) -> None:
    body = b"x" * (3 * MAX_HEAD)
    head = (
        b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    one = await send(port, head + body)
    assert one.startswith(b"HTTP/1.1 200")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):  # and a connection may be used again and again
        writer.write(head + body)
        await writer.drain()
        assert (await reader.readuntil(b"\r\n")) == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b"%d" % len(body))
    writer.close()


@pytest.mark.parametrize(
    "given",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /length HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /who HTTP/1.1\r\nHost: x\r\nA\x00B: c\r\n\r\n",
    ],
)
async def test_garbage_is_refused_and_the_service_lives(port: int, given: bytes) -> None:
    assert (await send(port, given)).startswith(b"HTTP/1.1 400")
    assert await alive(port)


async def test_a_body_that_says_it_is_huge_is_refused_before_it_comes(port: int) -> None:
    head = b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
    assert (await send(port, head)).startswith(b"HTTP/1.1 413")


async def test_the_address_of_a_client_is_that_of_its_connection(port: int) -> None:
    head = b"GET /who HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.9.8.7\r\nForwarded: for=10.9.8.7\r\n\r\n"
    answer = await send(port, head)
    assert answer.endswith(b'"127.0.0.1"')
    assert b"server:" not in answer.lower()
