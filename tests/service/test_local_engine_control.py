"""Pausing, aborting, swapping weights, keys and limits of the local engine over in-process ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.local_engine.engine import Engine
from services.local_engine.scheduler import Limits
from tests.unit.local_engine.models import (
    build_folder,
    edit_weights,
    new_engine,
    plain_logprobs,
    plain_model,
    random_prompts,
)
from tests.unit.local_engine.wire import body, client_of, generate, scores, until

CLOSE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder(tmp_path_factory.mktemp("models") / "first", seed=0)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder(tmp_path_factory.mktemp("models") / "second", seed=1)


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    made = new_engine(folder)
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(engine) as opened:
        yield opened


async def test_pausing_in_place_holds_requests_and_continuing_finishes_them(
    client: httpx.AsyncClient, engine: Engine
) -> None:
    task = asyncio.create_task(
        generate(client, [5], sampling={"max_new_tokens": 200, "ignore_eos": True})
    )
    await until(lambda: engine.load()["num_running_reqs"] == 1)
    assert (await client.post("/pause_generation", json={"mode": "in_place"})).status_code == 200
    if not task.done():  # it may have been faster than the pause
        held = await client.get("/flush_cache")
        assert (held.status_code, held.text) == (400, "Flush cache failed.")
    late = asyncio.create_task(generate(client, [6], sampling={"max_new_tokens": 1}))
    await until(lambda: engine.load()["num_waiting_reqs"] == 1)
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
    await until(lambda: engine.load()["num_waiting_reqs"] == 1)
    assert (await client.post("/pause_generation", json={})).status_code == 200
    result = await task
    assert result["meta_info"]["finish_reason"]["type"] == "abort"
    assert result["output_ids"] == []
    assert result["meta_info"]["weight_versions"] == []
    assert (await client.post("/pause_generation", json={"mode": "gently"})).status_code == 400


async def test_a_request_is_aborted_by_its_rid_and_all_by_abort_all(
    client: httpx.AsyncClient, engine: Engine
) -> None:
    await client.post("/pause_generation", json={"mode": "in_place"})
    tasks = [asyncio.create_task(generate(client, [5], rid=rid)) for rid in ("a", "b", "c")]
    await until(lambda: engine.load()["num_waiting_reqs"] == 3)
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


async def test_new_weights_serve_under_running_requests_and_nobody_fails(
    client: httpx.AsyncClient, engine: Engine, folder: Path, other_folder: Path
) -> None:
    model = {"0": plain_model(folder), "1": plain_model(other_folder)}
    sampling = {"max_new_tokens": 150, "ignore_eos": True}
    prompts = random_prompts(16)
    tasks = [asyncio.create_task(generate(client, p, sampling=sampling)) for p in prompts]
    await until(lambda: engine.load()["num_running_reqs"] == 16)
    reply = await client.post(
        "/update_weights_from_disk",
        json={"model_path": str(other_folder), "weight_version": "1", "flush_cache": True},
    )
    assert (reply.status_code, reply.json()["success"]) == (200, True)
    assert type(reply.json()["num_paused_requests"]) is int
    for prompt, result in zip(prompts, await asyncio.gather(*tasks), strict=True):
        meta, ids = result["meta_info"], result["output_ids"]
        spans = meta["weight_versions"]
        assert [t for s in spans for t in range(s["start"], s["end"])] == list(range(150))
        assert [s["version"] for s in spans] in (["0"], ["1"], ["0", "1"])
        first = spans[0]
        expected = plain_logprobs(model[first["version"]], prompt, ids[: first["end"]])
        assert scores(result)[: first["end"]] == pytest.approx(expected, abs=CLOSE)
        assert meta["weight_version"] == spans[-1]["version"]
    fresh = await generate(client, prompts[0], sampling=sampling)
    assert fresh["meta_info"]["weight_versions"] == [{"version": "1", "start": 0, "end": 150}]
    expected = plain_logprobs(model["1"], prompts[0], fresh["output_ids"])
    assert scores(fresh) == pytest.approx(expected, abs=CLOSE)
    assert (await client.get("/model_info")).json()["weight_version"] == "1"


@pytest.mark.parametrize("damage", ["missing", "truncated", "shape"])
async def test_a_bad_folder_is_refused_by_name_and_the_old_weights_keep_serving(
    client: httpx.AsyncClient, folder: Path, tmp_path: Path, damage: str
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    if damage == "missing":
        bad, says = tmp_path / "nowhere", "nowhere"
    elif damage == "shape":
        cut = lambda tensors: tensors.update({name: tensors[name][:-1].clone()})  # noqa: E731
        bad, says = edit_weights(folder, tmp_path / "bad", cut), name
    else:
        bad, says = (
            edit_weights(folder, tmp_path / "bad", lambda tensors: None),
            "model.safetensors",
        )
        data = (bad / "model.safetensors").read_bytes()
        (bad / "model.safetensors").write_bytes(data[: len(data) // 2])
    sampling = {"max_new_tokens": 6, "temperature": 0.0}
    before = await generate(client, [5, 6], sampling=sampling)
    sums = (await client.post("/weights_checker", json={"action": "checksum"})).json()
    reply = await client.post(
        "/update_weights_from_disk", json={"model_path": str(bad), "weight_version": "9"}
    )
    assert reply.status_code == 400
    assert reply.json()["success"] is False
    assert says in reply.json()["message"]
    await client.get("/flush_cache")
    after = await generate(client, [5, 6], sampling=sampling)
    assert (after["output_ids"], scores(after)) == (before["output_ids"], scores(before))
    assert after["meta_info"]["weight_version"] == "0"
    assert (await client.post("/weights_checker", json={"action": "checksum"})).json() == sums


async def test_going_back_to_the_first_weights_gives_the_first_logprobs(
    client: httpx.AsyncClient, folder: Path, other_folder: Path
) -> None:
    sampling = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    found = []
    for path, version in ((folder, "1"), (other_folder, "2"), (folder, "3")):
        await client.post(
            "/update_weights_from_disk", json={"model_path": str(path), "weight_version": version}
        )
        found.append(scores(await generate(client, [5, 6], sampling=sampling)))
    assert found[0] == found[2] != found[1]


async def test_a_prompt_beyond_the_token_budget_names_its_knob(folder: Path) -> None:
    async with client_of(new_engine(folder, limits=Limits(max_total_tokens=20))) as client:
        reply = await client.post("/generate", json=body([5] * 15, sampling={"max_new_tokens": 6}))
    assert reply.status_code == 400
    assert "--max-total-tokens 20" in reply.json()["error"]["message"]


async def test_a_full_queue_answers_503_with_a_time_to_retry(folder: Path) -> None:
    engine = new_engine(folder, limits=Limits(max_running=1, max_queued=2))
    engine.start()
    try:
        async with client_of(engine) as client:
            await client.post("/pause_generation", json={"mode": "in_place"})
            waiting = [asyncio.create_task(generate(client, [5])) for _ in range(3)]
            await until(lambda: engine.load()["num_waiting_reqs"] == 3)
            reply = await client.post("/generate", json=body([5]))
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert "--max-queued-requests" in reply.json()["error"]["message"]
            await client.post("/continue_generation", json={})
            assert len(await asyncio.gather(*waiting)) == 3
            assert (
                len((await generate(client, [5], sampling={"max_new_tokens": 1}))["output_ids"])
                == 1
            )
    finally:
        engine.stop()


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
    renamed = {"new_version": "7", "abort_all_requests": False}
    assert (await client.post("/update_weight_version", json=renamed)).status_code == 200
    assert (await client.get("/model_info")).json()["weight_version"] == "7"


def assert_same_shape(found: Any, recorded: Any, where: str) -> None:
    """Every recorded field is there with the recorded type; values may differ."""
    if isinstance(recorded, dict):
        assert isinstance(found, dict), where
        assert set(recorded) <= set(found), where
        for key, value in recorded.items():
            assert_same_shape(found[key], value, f"{where}.{key}")
    elif isinstance(recorded, list):
        assert isinstance(found, list), where
        for i, value in enumerate(found if recorded else []):
            assert_same_shape(value, recorded[min(i, len(recorded) - 1)], f"{where}[{i}]")
    else:
        assert type(found) is type(recorded), where


async def test_every_answer_has_the_shape_that_the_real_server_gave(
    engine: Engine, folder: Path, tmp_path: Path
) -> None:
    recordings = Path(__file__).parents[1] / "contract" / "sglang"
    ask = body([[5, 6], [7]], sampling=[{"max_new_tokens": 3, "ignore_eos": True}] * 2)
    weights = {"weight_version": "1", "flush_cache": True}
    bodies: dict[str, Any] = {
        "ready": None, "model_info": None, "generate_batch": ask, "pause_retract": {"mode": "retract"},
        "continue": {}, "update_from_disk": {"model_path": str(folder), **weights},
        "update_missing_folder": {"model_path": str(tmp_path / "missing"), **weights},
    }  # fmt: skip
    async with client_of(engine) as client:
        for name, sent in bodies.items():
            recorded = json.loads((recordings / f"{name}.json").read_text())
            reply = await client.request(recorded["method"], recorded["path"], json=sent)
            assert reply.status_code == recorded["status"], name
            expected = recorded["reply"]
            for row in expected if name == "generate_batch" else []:
                row["meta_info"]["finish_reason"] = {"type": "length", "length": 3}
            assert_same_shape(reply.json(), expected, name)
    async with client_of(engine, api_key="K") as client:
        recorded = json.loads((recordings / "generate_without_key.json").read_text())
        reply = await client.post("/generate", json=recorded["request"])
        assert (reply.status_code, reply.json()) == (recorded["status"], recorded["reply"])
