"""`triforge pool create` sends a file to the API, which names every bad row of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.service.env_service import api, game
from triforge.cli.pools import read_pool, send_pool
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.errors import InputError
from triforge.store.database import Database
from triforge.types import PoolState


@pytest.fixture
async def client(database: Database) -> AsyncIterator[EnvAdapterClient]:
    opened = EnvAdapterClient("http://env", transport=httpx.ASGITransport(app=api(database)))
    yield opened
    await opened.close()


async def create(client: EnvAdapterClient, file: Path) -> PoolState:
    return await send_pool(client, "kitchen", read_pool(file), environment="household")


async def test_json_and_jsonl_make_the_same_pool(client: EnvAdapterClient, tmp_path: Path) -> None:
    lines, body = tmp_path / "a.jsonl", tmp_path / "b.json"
    lines.write_text(json.dumps({"params": game()}))
    body.write_text(json.dumps({"tasks": [{"params": game()}]}))
    first = await create(client, lines)
    second = await send_pool(client, "other", read_pool(body), environment="household")
    assert first.tasks == second.tasks == {"train": {"active": 1}, "heldout": {}}
    assert first.environment == second.environment == "household"


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.jsonl", '{"params": 1}\n{oops\n\n{"params": {}}', ["line 1", "line 2", "line 4"]),
        ("a.jsonl", '{"params": 1}\n\n{"params": {}}', ["line 1", "line 3"]),
        ("a.json", '{"tasks": [{"params": 1}, {"params": {}}]}', ["tasks[0]", "tasks[1]"]),
    ],
)
async def test_every_bad_row_of_a_file_is_named_and_nothing_is_stored(
    client: EnvAdapterClient, tmp_path: Path, name: str, text: str, named: list[str]
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="rows are malformed, nothing was stored") as caught:
        await create(client, tmp_path / name)
    assert [problem.split(":")[0] for problem in caught.value.problems] == named
    assert await client.pools() == []
