"""A stream of events to a client that may leave at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from triforge.web.server import EventStream


@pytest.mark.parametrize("reads", [0, 1])
async def test_the_source_ends_when_the_client_leaves_before_or_after_the_first_line(
    reads: int,
) -> None:
    ended: list[bool] = []
    gone = asyncio.Event()

    async def source() -> AsyncGenerator[str, None]:
        try:
            yield "begun"
            while True:
                yield "data: 1\n\n"
        finally:
            ended.append(True)

    async def lines(pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        async for piece in pieces:
            yield piece

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > reads:
            gone.set()
            await asyncio.Event().wait()  # nothing more is read

    pieces = source()
    await anext(pieces)
    answer = EventStream(lines(pieces), pieces)
    await answer({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert len(sent) == reads + 1
    assert ended == [True]
