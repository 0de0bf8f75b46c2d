"""Replacing the weights of the local engine while it serves, over in-process ASGI."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file

from services.local_engine.engine import Engine
from tests.unit.local_engine.models import (
    edit_weights,
    plain_logprobs,
    plain_model,
    random_prompts,
)
from tests.unit.local_engine.wire import generate, scores, until

CLOSE = 1e-4


async def test_new_weights_serve_under_running_requests_and_none_fails(
    client: httpx.AsyncClient, engine: Engine, folder: Path, other_folder: Path
) -> None:
    model = {"0": plain_model(folder), "1": plain_model(other_folder)}
    sampling = {"max_new_tokens": 150, "ignore_eos": True}
    prompts = random_prompts(16)
    tasks = [asyncio.create_task(generate(client, p, sampling=sampling)) for p in prompts]
    await until(lambda: len(engine.scheduler.running) == 16)
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


NAME = "model.layers.0.mlp.up_proj.weight"


def damaged(folder: Path, bad: Path, damage: str) -> str:
    """A copy of a folder with one thing wrong; returns what the error must say."""
    if damage == "nowhere":
        return "nowhere"
    changes: dict[str, tuple[Any, str]] = {
        "shape": (lambda t: t.update({NAME: t[NAME][:-1].clone()}), f"{NAME} has shape [47, 32], expected [48, 32]"),
        "missing": (lambda t: t.pop(NAME), f"{NAME} is missing (1 in all)"),
        "not finite": (lambda t: t[NAME].fill_(float("nan")), f"{NAME} holds values that are not finite"),
        "truncated": (lambda t: None, "model.safetensors cannot be read"),
        "architecture": (lambda t: None, "num_attention_heads is 8, the served model has 4"),
    }  # fmt: skip
    change, says = changes[damage]
    edit_weights(folder, bad, change)
    if damage == "truncated":
        data = (bad / "model.safetensors").read_bytes()
        (bad / "model.safetensors").write_bytes(data[: len(data) // 2])
    if damage == "architecture":
        config = json.loads((bad / "config.json").read_text())
        (bad / "config.json").write_text(json.dumps(config | {"num_attention_heads": 8}))
    return says


@pytest.mark.parametrize(
    "damage", ["nowhere", "truncated", "shape", "missing", "not finite", "architecture"]
)
async def test_a_bad_folder_is_refused_by_name_and_the_old_weights_keep_serving(
    client: httpx.AsyncClient, folder: Path, tmp_path: Path, damage: str
) -> None:
    bad = tmp_path / "nowhere"
    says = damaged(folder, bad, damage)
    sampling = {"max_new_tokens": 6, "temperature": 0.0}
    before = await generate(client, [5, 6], sampling=sampling)
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


async def test_a_weight_is_read_back_exactly_by_its_name(
    client: httpx.AsyncClient, folder: Path
) -> None:
    weights = load_file(folder / "model.safetensors")
    for name in (NAME, "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"):
        body = {"name": name, "truncate_size": 3}
        reply = await client.post("/get_weights_by_name", json=body)
        assert reply.json() == weights[name][:3].tolist()
    for body, says in (
        ({"name": "model.nonsense"}, "tensor 'model.nonsense' is unknown"),
        ({"name": NAME, "truncate_size": -1}, "truncate_size is -1"),
        ({}, "name is missing"),
    ):
        reply = await client.post("/get_weights_by_name", json=body)
        assert reply.status_code == 400
        assert says in reply.json()["error"]["message"]
