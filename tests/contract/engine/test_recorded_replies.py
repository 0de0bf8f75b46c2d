"""The engine answers one whole conversation with the fields, types and nesting that real SGLang was recorded with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.real_sglang.exchanges import Exchange, play
from scripts.real_sglang.recordings import alike, read, settled
from tests.contract.engine.conftest import Engine

RECORDED = read(Path(__file__).parents[1] / "sglang")
# How many tokens an event brings is chance, so an event may look like any recorded one of its route. A client that is
# served late may get all of them in one event, which then looks like the reply to the request that is not streamed.
EVENTS = {
    path: [
        e
        for exchange in RECORDED.values()
        if exchange.stream and exchange.path == path
        for e in exchange.reply
    ]
    for path in {exchange.path for exchange in RECORDED.values()}
}

_played: dict[str, Mapping[str, Exchange]] = {}


@pytest.fixture
async def played(engine: Engine) -> Mapping[str, Exchange]:
    """The conversation, held once a session."""
    url = engine.served.url
    if url not in _played:
        exchange = await play(engine.conversation(), engine.folders)
        _played[url] = {name: settled(e, engine.folders) for name, e in exchange.items()}
    return _played[url]


def whole(recorded: Exchange) -> list[Any]:
    """The recorded replies to the same request without a stream."""
    asked = {key: value for key, value in recorded.request.items() if key != "stream"}
    return [
        exchange.reply
        for exchange in RECORDED.values()
        if not exchange.stream and (exchange.path, exchange.request) == (recorded.path, asked)
    ]


# SGLang counts an answer as cut whose grammar is finished by the last token that it may have.
CUT = ("generate_regex_last", "generate_json_last")


@pytest.mark.parametrize("name", RECORDED)
async def test_a_reply_has_the_recorded_shape(
    engine: Engine, played: Mapping[str, Exchange], name: str
) -> None:
    recorded, found = RECORDED[name], played[name]
    assert (found.method, found.path, found.stream) == (
        recorded.method,
        recorded.path,
        recorded.stream,
    )
    assert found.status == recorded.status, found.reply
    if recorded.stream:
        known, last = EVENTS[recorded.path], recorded.reply[-1:]
        if len(found.reply) == 1:
            known = last = last + whole(recorded)
        assert [e for e in found.reply if not any(alike(e, k) for k in known)] == []
        assert any(alike(found.reply[-1], k) for k in last), found.reply[-1]
    elif name in CUT and not engine.served.real:
        assert recorded.reply["meta_info"]["finish_reason"]["type"] == "length"
        assert found.reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}
    else:
        assert alike(found.reply, recorded.reply), found.reply


async def test_every_exchange_is_recorded(played: Mapping[str, Exchange]) -> None:
    assert sorted(played) == sorted(RECORDED)
