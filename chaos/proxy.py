"""A TCP proxy before an engine: it can be slow, silent, or cut off.

An engine behind it is the real one. Only answers to requests for text are made slow; probes pass as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

_CHUNK = 1 << 16
_WORK = (b"POST /generate", b"POST /v1/")


class Proxy:
    """Forwards connections from a port of its own to an engine.

    Args:
        delay_s: every answer to a request for text waits so long.
    """

    def __init__(self, target: int, *, delay_s: float = 0.0) -> None:
        self._target = target
        self.delay_s = delay_s
        self.port = 0
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await self.cut()

    def hang(self) -> None:
        """From now on bytes go in and nothing comes out, in both directions; connections stay open."""
        self._open.clear()

    def heal(self) -> None:
        """Let bytes through again, those that waited included."""
        self._open.set()

    async def cut(self) -> None:
        """Drop all connections without a word."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        asked = _Asked()
        ways: Iterable[asyncio.Task[None]] = [
            asyncio.create_task(self._requests(reader, back, asked)),
            asyncio.create_task(self._answers(there, writer, asked)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (back, writer):
                with contextlib.suppress(OSError):
                    end.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: _Asked
    ) -> None:
        while data := await reader.read(_CHUNK):
            asked.for_text = asked.for_text or data.startswith(_WORK)
            await self._open.wait()
            writer.write(data)
            await writer.drain()

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: _Asked
    ) -> None:
        while data := await reader.read(_CHUNK):
            if asked.for_text:
                asked.for_text = False
                await asyncio.sleep(self.delay_s)
            await self._open.wait()
            writer.write(data)
            await writer.drain()


class _Asked:
    """Whether a connection waits for text."""

    def __init__(self) -> None:
        self.for_text = False
