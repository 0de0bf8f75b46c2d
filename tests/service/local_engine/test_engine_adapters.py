"""Adapters of the local engine over in-process ASGI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.local_engine.adapters import build_adapter, merge
from tests.unit.local_engine.models import plain_logprobs, plain_model
from tests.unit.local_engine.wire import body, generate, scores


async def test_a_loaded_adapter_serves_those_who_name_it_until_it_is_unloaded(
    client: httpx.AsyncClient, folder: Path, tmp_path: Path
) -> None:
    made = build_adapter(tmp_path / "a", folder)
    load: dict[str, Any] = {"lora_name": "new", "lora_path": str(made), "pinned": False}
    reply = await client.post("/load_lora_adapter", json=load)
    assert (reply.status_code, reply.json()) == (
        200,
        {"success": True, "error_message": None, "loaded_adapters": {"new": str(made)}},
    )
    cards = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("tiny", None), ("new", "tiny")]
    sampling = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    rows = await generate(client, [[5, 6], [5, 6]], lora_path=["new", None], sampling=sampling)
    merged = merge(folder, made, tmp_path / "m")
    for row, model in zip(rows, (merged, folder), strict=True):
        expected = plain_logprobs(plain_model(model), [5, 6], row["output_ids"])
        assert scores(row) == pytest.approx(expected, abs=2e-4)
    assert (await client.post("/unload_lora_adapter", json={"lora_name": "new"})).status_code == 200
    refused = await client.post("/generate", json=body([5], lora_path="new"))
    assert refused.status_code == 400
    assert "'new'; loaded adapters are none" in refused.json()["error"]["message"]


async def test_adapters_that_cannot_be_loaded_say_why(
    client: httpx.AsyncClient, folder: Path, tmp_path: Path
) -> None:
    made = str(build_adapter(tmp_path / "a", folder))
    await client.post("/load_lora_adapter", json={"lora_name": "a", "lora_path": made})
    for path, sent, says in (
        ("/load_lora_adapter", {"lora_name": "a", "lora_path": made}, "is loaded already"),
        ("/load_lora_adapter", {"lora_name": "b", "lora_path": str(folder)}, "does not exist"),
        ("/load_lora_adapter", {"lora_name": "b"}, "lora_path is missing"),
        ("/unload_lora_adapter", {"lora_name": "b"}, "'b' is not loaded"),
        ("/unload_lora_adapter", {}, "'' is not loaded"),
    ):
        reply = await client.post(path, json=sent)
        assert reply.status_code == 400
        assert says in reply.json()["error_message"]
        assert reply.json()["loaded_adapters"] == {"a": made}
