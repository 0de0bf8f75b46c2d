"""Pausing, aborting, swapping weights, keys and limits of the local engine over in-process ASGI."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.local_engine.engine import Engine
from services.local_engine.scheduler import Limits
from tests.unit.local_engine.models import new_engine
from tests.unit.local_engine.wire import body, client_of, generate, until


async def test_pausing_in_place_holds_requests_and_continuing_finishes_them(
    client: httpx.AsyncClient, engine: Engine
) -> None:
    task = asyncio.create_task(
        generate(client, [5], sampling={"max_new_tokens": 200, "ignore_eos": True})
    )
    await until(lambda: len(engine.scheduler.running) == 1)
    assert (await client.post("/pause_generation", json={"mode": "in_place"})).status_code == 200
    if len(engine.scheduler.running):  # it may have been faster than the pause
        held = await client.get("/flush_cache")
        assert (held.status_code, held.text) == (400, "Flush cache failed.\n")
    late = asyncio.create_task(generate(client, [6], sampling={"max_new_tokens": 1}))
    await until(lambda: len(engine.scheduler.waiting) == 1)
    assert (await client.get("/server_info")).json()["is_paused"] is True
    assert (await client.post("/continue_generation", json={})).status_code == 200
    assert len((await task)["output_ids"]) == 200
    assert len((await late)["output_ids"]) == 1


async def test_pausing_with_abort_returns_what_there_is(
    client: httpx.AsyncClient, engine: Engine
) -> None:
    await client.post("/pause_generation", json={"mode": "in_place"})
    task = asyncio.create_task(
        generate(client, [5], sampling={"max_new_tokens": 50, "ignore_eos": True})
    )
    await until(lambda: len(engine.scheduler.waiting) == 1)
    assert (await client.post("/pause_generation", json={})).status_code == 200
    result = await task
    assert result["meta_info"]["finish_reason"]["type"] == "abort"
    assert result["output_ids"] == []
    assert result["meta_info"]["weight_versions"] == [{"version": "0", "start": 0, "end": 0}]
    assert (await client.post("/pause_generation", json={"mode": "gently"})).status_code == 400


async def test_a_request_is_aborted_by_its_rid_and_all_by_abort_all(
    client: httpx.AsyncClient, engine: Engine
) -> None:
    await client.post("/pause_generation", json={"mode": "in_place"})
    tasks = [asyncio.create_task(generate(client, [5], rid=rid)) for rid in ("a", "b", "c")]
    await until(lambda: len(engine.scheduler.waiting) == 3)
    twice = await client.post("/generate", json=body([5], rid="a"))
    assert twice.status_code == 400
    assert "'a' is in use" in twice.text
    assert (await client.post("/abort_request", json={"rid": "b"})).status_code == 200
    assert (await tasks[1])["meta_info"]["finish_reason"]["type"] == "abort"
    assert not tasks[0].done()
    assert (await client.post("/abort_request", json={"abort_all": True})).status_code == 200
    for task in (tasks[0], tasks[2]):
        assert (await task)["meta_info"]["finish_reason"]["type"] == "abort"
    assert (await client.post("/abort_request", json={})).status_code == 400


async def test_a_prompt_beyond_the_token_budget_names_its_option(folder: Path) -> None:
    async with client_of(new_engine(folder, limits=Limits(max_total_tokens=20))) as client:
        reply = await client.post("/generate", json=body([5] * 15, sampling={"max_new_tokens": 6}))
    assert reply.status_code == 400
    assert "--max-total-tokens 20" in reply.json()["error"]["message"]


async def test_keys_guard_the_routes_as_sglang_does(engine: Engine) -> None:
    async def status(
        client: httpx.AsyncClient, path: str, key: str | None, **json_body: Any
    ) -> int:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return (await client.post(path, json=json_body, headers=headers)).status_code

    ask = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
    async with client_of(engine, api_key="K", admin_api_key="A") as client:
        found = [await status(client, "/generate", key, **ask) for key in (None, "A", "K", "k")]
        assert found == [401, 401, 200, 401]
        found = [await status(client, "/continue_generation", key) for key in (None, "K", "A")]
        assert found == [401, 401, 200]
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/model_info")).status_code == 401
    async with client_of(engine, api_key="K") as client:
        assert [await status(client, "/continue_generation", key) for key in (None, "K")] == [
            401,
            200,
        ]


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


async def test_information_routes_tell_name_version_and_limits(
    client: httpx.AsyncClient, folder: Path
) -> None:
    assert (
        (await client.get("/health")).status_code == (await client.get("/ready")).status_code == 200
    )
    models = (await client.get("/v1/models")).json()
    assert models["data"][0]["id"] == "tiny"
    assert models["data"][0]["max_model_len"] == 256
    info = (await client.get("/model_info")).json()
    assert (info["model_path"], info["weight_version"]) == (str(folder), "0")
    server = (await client.get("/server_info")).json()
    assert (server["max_running_requests"], server["context_length"]) == (64, 256)
    assert (await client.post("/model_info")).status_code == 405
    renamed = {"new_version": "7", "abort_all_requests": False}
    assert (await client.post("/update_weight_version", json=renamed)).status_code == 200
    assert (await client.get("/model_info")).json()["weight_version"] == "7"
