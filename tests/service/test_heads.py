"""Where the bytes of a connection belong: headers, bodies, bodies in chunks, however they are cut in pieces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.service.on_the_wire import Broker
from triforge.web.server import LimitedProtocol, careful


class Small(LimitedProtocol):
    """Takes so little that every place of a request can be tried."""

    max_head = 80


async def length(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers with the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = b"<%d>" % size
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})  # fmt: skip
    await send({"type": "http.response.body", "body": body})


async def say(*parts: bytes, answers: int = 0) -> Broker:
    """Send parts as they are cut; waits for so many answers or for the end."""
    config = uvicorn.Config(length, log_level="critical", **careful())
    broker, protocol = Broker(), Small(config, ServerState(), {})
    protocol.connection_made(broker)
    for part in parts:
        protocol.data_received(part)
    async with asyncio.timeout(20):
        while broker.written.count(b"HTTP/1.1 ") < answers and not broker.hung_up:  # noqa: ASYNC110
            await asyncio.sleep(0)
    hung_up = broker.hung_up
    protocol.connection_lost(None)  # which closes the transport itself
    broker.hung_up = hung_up
    return broker


def head(size: int, line: bytes = b"GET /") -> bytes:
    """A request of so many bytes, without a body."""
    start = line + b" HTTP/1.1\r\nHost: x\r\nA: "
    return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"


POST = b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n" + b"\r\n\r\nGET" * 14 + b"\r\n"
CHUNKS = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\r\n\r\n\r\n2\r\nab\r\n0\r\nLast: x\r\n\r\n"


@pytest.mark.parametrize("size", [80, 81])
async def test_headers_are_counted_to_the_byte_wherever_they_are_cut(size: int) -> None:
    whole = POST + CHUNKS + head(size) + POST
    for cut in range(len(whole)):
        broker = await say(whole[:cut], whole[cut:], answers=4)
        said = (
            broker.written.count(b"HTTP/1.1 200"),
            b"<100>" in broker.written,
            b"<6>" in broker.written,
        )
        if size == 80:
            assert (said, broker.hung_up) == ((4, True, True), False), cut
        else:
            assert broker.hung_up, cut
            assert broker.written.count(b"HTTP/1.1 200") < 3, cut


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
async def test_what_is_too_long_is_refused_whether_it_ends_or_not(end: bytes) -> None:
    for given in (b"GET /" + b"a" * 100, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20, b"\r\n" * 50):
        broker = await say(given + end, answers=1)
        assert broker.written.startswith(b"HTTP/1.1 431")
        assert broker.hung_up


async def test_headers_behind_a_body_in_chunks_are_counted_too() -> None:
    endless = CHUNKS.partition(b"Last")[0] + b"A: b\r\n" * 40
    assert (await say(endless, answers=1)).hung_up
    small = (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * 500
        + b"0\r\n\r\n"
    )
    broker = await say(small, answers=1)
    assert broker.written.endswith(b"<500>")


@pytest.mark.parametrize(
    "given",
    [
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"POST / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\n\n",
    ],
)
async def test_whatever_comes_behind_any_request_is_read_to_its_end(given: bytes) -> None:
    for more in (b"", b"ab", b"\r\n", head(80), b"\x00" * 200):
        await say(given + more)
        await say(given, more)
