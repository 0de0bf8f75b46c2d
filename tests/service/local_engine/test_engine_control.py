"""Pausing, aborting, swapping weights, keys and limits of the local engine over in-process ASGI."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.local_engine.engine import Engine
from services.local_engine.scheduler import Limits
from tests.unit.local_engine.models import new_engine
from tests.unit.local_engine.wire import body, client_of


async def test_a_prompt_beyond_the_token_budget_names_its_option(folder: Path) -> None:
    async with client_of(new_engine(folder, limits=Limits(max_total_tokens=20))) as client:
        reply = await client.post("/generate", json=body([5] * 15, sampling={"max_new_tokens": 6}))
    assert reply.status_code == 400
    assert "--max-total-tokens 20" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("api_key", "admin_key", "generate", "control"),
    [
        (None, None, {None, "K", "A"}, {None, "K", "A"}),
        ("K", None, {"K"}, {"K"}),
        (None, "A", {None, "K", "A"}, {"A"}),
        ("K", "A", {"K"}, {"A"}),
    ],
)
async def test_each_kind_of_route_takes_its_own_key_and_no_other(
    engine: Engine,
    api_key: str | None,
    admin_key: str | None,
    generate: set[str | None],
    control: set[str | None],
) -> None:
    async with client_of(engine, api_key=api_key, admin_api_key=admin_key) as client:
        for path, opens in (("/model_info", generate), ("/flush_cache", control)):
            for key in (None, "K", "A"):
                headers = {"authorization": f"Bearer {key}"} if key else {}
                status = (await client.get(path, headers=headers)).status_code
                assert (status != 401) == (key in opens)


async def test_the_scheme_may_be_written_small_and_nothing_else_passes(engine: Engine) -> None:
    async with client_of(engine, api_key="K") as client:
        for word, status in (
            ("bearer K", 200),
            ("K", 401),
            ("Basic K", 401),
            ("Bearer", 401),
            ("Bearer k", 401),
            ("BearerK", 401),
        ):
            reply = await client.get("/model_info", headers={"authorization": word})
            assert reply.status_code == status, word
        assert (await client.get("/ready")).status_code == 200
