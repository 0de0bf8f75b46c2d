"""Commands that travel together against a real Valkey."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.asyncio as aioredis

from triforge.broker import Broker
from triforge.broker.convoy import packed


@pytest.mark.parametrize(
    "command",
    [
        ("GET", "key"),
        ("SET", "key", "\u00fc \u4e2d \r\n $3", "EX", 604_800),
        ("EVAL", "return 1", 1, "key", b"\x00\xff", -1, ""),
    ],
)
def test_a_command_is_written_as_the_client_writes_it(command: tuple[Any, ...]) -> None:
    assert packed(command) == b"".join(aioredis.Connection().pack_command(*command))


@pytest.mark.parametrize("argument", [None, 1.5, ["a"]])
def test_what_is_neither_text_nor_whole_number_is_no_part_of_a_command(argument: Any) -> None:
    with pytest.raises(TypeError):
        packed(("SET", "key", argument))


async def test_a_command_that_cannot_be_written_fails_whoever_asked_and_nobody_else(
    broker: Broker,
) -> None:
    good, bad = await asyncio.gather(
        broker._ask("SET", "key", "value"),
        broker._ask("SET", "key", "\ud800"),
        return_exceptions=True,
    )
    assert good is True
    assert isinstance(bad, UnicodeEncodeError)
    assert await broker._ask("GET", "key") == "value"
