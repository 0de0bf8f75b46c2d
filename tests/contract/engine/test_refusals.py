"""Refused requests, after which the engine lives on, and the key of each route."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from scripts.real_sglang.exchanges import PROMPT
from scripts.real_sglang.folders import truncated
from tests.contract.engine.conftest import Engine, tokens

SAMPLING = {"temperature": 0.0, "max_new_tokens": 2, "ignore_eos": True}


async def _context(engine: Engine) -> int:
    models = (await engine.get("/v1/models")).json()
    context: int = models["data"][0]["max_model_len"]
    return context


async def _lives(engine: Engine) -> None:
    assert (await engine.get("/ready")).status_code == 200
    assert len(tokens(await engine.generate(PROMPT))) == 4


async def test_a_prompt_over_the_context_is_refused_with_both_lengths(engine: Engine) -> None:
    context = await _context(engine)
    body = {"input_ids": [1] * (context + 5), "sampling_params": SAMPLING}
    response = await engine.post("/generate", body)
    assert response.status_code == 400
    assert str(context) in response.text
    assert str(context + 5) in response.text
    await _lives(engine)


async def test_a_prompt_whose_answer_would_not_fit_is_refused(engine: Engine) -> None:
    context = await _context(engine)
    body = {"input_ids": PROMPT, "sampling_params": SAMPLING | {"max_new_tokens": context}}
    response = await engine.post("/generate", body)
    assert response.status_code == 400
    assert str(context) in response.text
    await _lives(engine)


REFUSED: dict[str, dict[str, Any]] = {
    "no prompt": {"sampling_params": SAMPLING},
    "an empty prompt": {"input_ids": [], "sampling_params": SAMPLING},
    "an unknown parameter": {"input_ids": PROMPT, "sampling_params": {"nonsense": 1}},
    "a negative temperature": {"input_ids": PROMPT, "sampling_params": {"temperature": -1.0}},
    "a negative length": {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": -1}},
    "a broken regex": {"input_ids": PROMPT, "sampling_params": {"regex": "("}},
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
async def test_nonsense_is_refused_with_a_reason(engine: Engine, body: dict[str, Any]) -> None:
    response = await engine.post("/generate", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert len(error if isinstance(error, str) else error["message"]) > 10
    await _lives(engine)


async def test_a_body_that_is_no_json_is_refused(engine: Engine) -> None:
    key = {"authorization": f"Bearer {engine.served.api_key}", "content-type": "application/json"}
    response = await engine.client.post("/generate", content=b"{nonsense", headers=key)
    assert response.status_code == 400
    await _lives(engine)


async def test_an_unknown_request_can_be_aborted_in_vain(engine: Engine) -> None:
    await engine.control("/abort_request", {"rid": "unknown-name"})
    await _lives(engine)


async def test_a_name_in_use_is_refused(engine: Engine) -> None:
    talk, name = engine.conversation(), uuid.uuid4().hex
    long = {
        "input_ids": PROMPT,
        "sampling_params": SAMPLING | {"max_new_tokens": 4000},
        "rid": name,
        "stream": True,
    }
    events = talk.stream("long", "/generate", long)
    await anext(events)
    response = await engine.post(
        "/generate", {"input_ids": PROMPT, "sampling_params": SAMPLING, "rid": name}
    )
    assert response.status_code == 400
    assert name in response.text
    await engine.control("/abort_request", {"rid": name})
    assert [event async for event in events][-1]["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_folder_that_is_not_there_leaves_the_old_weights_serving(engine: Engine) -> None:
    before = (await engine.norm(), await engine.info())
    body = {"model_path": str(engine.folders.missing), "weight_version": "9"}
    reply = await engine.control("/update_weights_from_disk", body, status=400)
    assert reply["success"] is False
    assert str(engine.folders.missing) in reply["message"]
    assert (await engine.norm(), await engine.info()) == before
    await _lives(engine)


async def test_a_truncated_folder_leaves_the_old_weights_serving(
    engine: Engine, tmp_path: Path
) -> None:
    if engine.served.real:
        pytest.skip(
            "SGLang dies of it: docs/operate.md#sglang-and-gpus; the policy service never hands one over"
        )
    before = (await engine.norm(), await engine.info())
    folder = truncated(engine.folders.start, tmp_path / "truncated")
    body = {"model_path": str(folder), "weight_version": "9"}
    reply = await engine.control("/update_weights_from_disk", body, status=400)
    assert str(folder) in reply["message"]
    assert (await engine.norm(), await engine.info()) == before
    await _lives(engine)


@pytest.mark.parametrize("token", [-1, 10**6])
async def test_a_token_that_no_vocabulary_has_is_refused(engine: Engine, token: int) -> None:
    if engine.served.real:
        pytest.skip(
            "SGLang on a CPU dies of it: docs/operate.md#sglang-and-gpus; the policy service never sends one"
        )
    response = await engine.post(
        "/generate", {"input_ids": [1, token], "sampling_params": SAMPLING}
    )
    assert response.status_code == 400
    assert str(token) in response.text


async def test_a_stop_token_that_no_vocabulary_has_is_refused(engine: Engine) -> None:
    if engine.served.real:
        pytest.skip("SGLang takes it, and it never stops anything; the policy service refuses it")
    params = SAMPLING | {"stop_token_ids": [999_999]}
    response = await engine.post("/generate", {"input_ids": PROMPT, "sampling_params": params})
    assert response.status_code == 400
    assert "999999" in response.text


async def test_an_unknown_pause_mode_is_refused(engine: Engine) -> None:
    reply = await engine.control("/pause_generation", {"mode": "nonsense"}, status=400)
    assert "in_place" in reply["message"]
    await _lives(engine)


ADMIN_ROUTES = (
    "/pause_generation", "/continue_generation", "/abort_request", "/flush_cache", "/update_weights_from_disk",
    "/update_weights_from_distributed", "/begin_weight_update", "/end_weight_update",
    "/init_weights_update_group", "/destroy_weights_update_group", "/get_weights_by_name",
    "/update_weight_version",
)  # fmt: skip


async def test_each_key_opens_its_own_routes_only(engine: Engine) -> None:
    words = {"api": engine.served.api_key, "admin": engine.served.admin_key, "wrong": "wrong"}
    headers = {name: {"authorization": f"Bearer {word}"} for name, word in words.items()}
    headers["none"] = {}
    one = {"input_ids": PROMPT, "sampling_params": SAMPLING}

    async def status(method: str, path: str, who: str, body: Any = None) -> int:
        response = await engine.client.request(method, path, json=body, headers=headers[who])
        return response.status_code

    closed = [("POST", path, who, {}) for path in ADMIN_ROUTES for who in ("api", "wrong", "none")]
    closed += [("POST", "/generate", who, one) for who in ("admin", "wrong", "none")]
    paths = ("/model_info", "/server_info", "/v1/models")
    closed += [("GET", path, who, None) for path in paths for who in ("admin", "wrong", "none")]
    found = await asyncio.gather(*(status(*case) for case in closed))
    assert [case for case, code in zip(closed, found, strict=True) if code != 401] == []
    for path in ("/ready", "/health"):
        assert await status("GET", path, "none") == 200
    assert await status("POST", "/generate", "api", one) == 200
    assert [await status("GET", path, "api") for path in paths] == [200] * len(paths)
    assert await status("POST", "/flush_cache", "admin", {}) == 200
