"""The proxy before an engine: slow for text only, silent, cut off, and as before when it is healed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from chaos.proxy import Proxy


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    made = Proxy(server.sockets[0].getsockname()[1])
    await made.start()
    yield made
    await made.stop()
    server.close()


class Caller:
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def __aenter__(self) -> Caller:
        self._reader, self.writer = await asyncio.open_connection("127.0.0.1", self._proxy.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def ask(self, text: bytes) -> asyncio.Task[bytes]:
        self.writer.write(text)
        return asyncio.create_task(self._reader.read(1000))


async def answered(task: asyncio.Task[bytes]) -> bool:
    """Whether an answer comes at once; a fifth of a second is a long time on this machine's own network."""
    done, _ = await asyncio.wait({task}, timeout=0.2)
    return bool(done)


async def test_answers_pass_and_those_to_requests_for_text_wait(proxy: Proxy) -> None:
    proxy.delay_s = 3600.0
    async with Caller(proxy) as probe, Caller(proxy) as work:
        assert await asyncio.wait_for(probe.ask(b"GET /health"), 20) == b"GET /health"
        assert not await answered(work.ask(b"POST /generate"))


async def test_a_silent_engine_says_what_it_has_to_say_when_it_is_healed(proxy: Proxy) -> None:
    async with Caller(proxy) as caller:
        assert await asyncio.wait_for(caller.ask(b"one"), 20) == b"one"
        proxy.hang()
        two = caller.ask(b"two")
        assert not await answered(two)
        proxy.heal()
        assert await asyncio.wait_for(two, 20) == b"two"


async def test_cut_connections_break_and_new_ones_work(proxy: Proxy) -> None:
    async with Caller(proxy) as caller:
        assert await asyncio.wait_for(caller.ask(b"one"), 20) == b"one"
        await proxy.cut()
        with contextlib.suppress(ConnectionError):  # an end or a reset, as the kernel likes
            assert await asyncio.wait_for(caller.ask(b"two"), 20) == b""
    async with Caller(proxy) as caller:
        assert await asyncio.wait_for(caller.ask(b"three"), 20) == b"three"
