"""The generating routes of the local engine over in-process ASGI; the wire format is SGLang's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.local_engine.app import create_app
from services.local_engine.engine import Engine
from services.policy.engines.sglang import SGLangEngine
from tests.unit.local_engine.models import (
    plain_logprobs,
    plain_model,
    random_prompts,
)
from tests.unit.local_engine.wire import body, generate, scores

CLOSE = 1e-4


async def test_logprobs_over_http_equal_a_plain_forward_pass(
    client: httpx.AsyncClient, folder: Path
) -> None:
    model = plain_model(folder)
    prompts = random_prompts(8, shared=20)
    rows = await generate(
        client, prompts, sampling={"max_new_tokens": 10, "n": 2}, top_logprobs_num=3
    )
    assert len(rows) == 16
    for prompt, result in zip([p for p in prompts for _ in range(2)], rows, strict=True):
        assert result["meta_info"]["prompt_tokens"] == len(prompt)
        expected = plain_logprobs(model, prompt, result["output_ids"])
        assert scores(result) == pytest.approx(expected, abs=CLOSE)
        for top, score in zip(
            result["meta_info"]["output_top_logprobs"], scores(result), strict=True
        ):
            assert len(top) == 3
            assert top[0][0] >= score - 1e-6


async def test_the_policy_service_has_a_prompt_scored_without_an_adapter(
    engine: Engine, folder: Path
) -> None:
    ids = list(range(10, 22))
    service = SGLangEngine(
        "http://engine",
        transport=httpx.ASGITransport(create_app(engine=engine, served_name="tiny")),
    )
    found, version = await service.prompt_logprobs(ids, "")
    await service.close()
    expected = plain_logprobs(plain_model(folder), ids[:1], ids[1:])
    assert (found, version) == (pytest.approx(expected, abs=CLOSE), 0)


async def test_the_same_seed_gives_the_same_output_whatever_else_runs(
    client: httpx.AsyncClient,
) -> None:
    sampling = {"max_new_tokens": 12, "sampling_seed": 77, "ignore_eos": True}
    alone = await generate(client, [5, 6, 7], sampling=sampling)
    others = [generate(client, p, sampling={"max_new_tokens": 20}) for p in random_prompts(12)]
    together = (await asyncio.gather(generate(client, [5, 6, 7], sampling=sampling), *others))[0]
    other_seed = await generate(client, [5, 6, 7], sampling=sampling | {"sampling_seed": 78})
    assert together["output_ids"] == alone["output_ids"] != other_seed["output_ids"]


async def test_constrained_output_over_http_always_parses(client: httpx.AsyncClient) -> None:
    rows = await generate(
        client, [[5]] * 6, sampling={"regex": "(yes|no) w[1-9]", "max_new_tokens": 9}
    )
    assert all(row["text"].split()[0] in ("yes", "no") for row in rows)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
    rows = await generate(
        client, [[5]] * 6, sampling={"json_schema": json.dumps(schema), "max_new_tokens": 40}
    )
    assert all(set(json.loads(row["text"])) == {"a"} for row in rows)


async def test_requests_that_cannot_be_served_are_refused_with_their_reason(
    client: httpx.AsyncClient,
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (body([5] * 250, sampling={"max_new_tokens": 7}), "context length of 256"),
        (body([]), "input_ids must be"),
        (body([5, 100]), "input_ids: given token id 100, expected ids in [0, 99]"),
        (body(["w1"]), "input_ids must be"),
        ({"text": "w1", "input_ids": [5]}, "exactly one of text and input_ids"),
        ({"sampling_params": {}}, "exactly one of text and input_ids"),
        (body([5], sampling={"temperature": -1}), "temperature is -1"),
        (body([5], lora_path="x"), "loaded adapters are none"),
        (body([5], top_logprobs_num="3"), "top_logprobs_num is '3'"),
        (body([[5], [6]], rid=["a"]), "rid has 1 entries"),
        (body([5], sampling={"regex": "(a"}), "grammar is invalid"),
    ]
    for request, says in cases:
        reply = await client.post("/generate", json=request)
        assert reply.status_code == 400, request
        assert says in reply.json()["error"]["message"]
    broken = await client.post(
        "/generate", content=b"{", headers={"content-type": "application/json"}
    )
    assert broken.status_code == 400
    assert (await client.get("/nothing")).status_code == 404


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"text": "\ud800"}',
        rb'{"text": "w1 \udc00 w2"}',
        rb'{"text": ["w1", "\ud83d\ud83d"]}',
        rb'{"input_ids": [5], "rid": "\ud83d"}',
        rb'{"input_ids": [5], "sampling_params": {"stop": ["\ud83d"]}}',
        b'{"text": "\xed\xa0\x80"}',
    ],
)
async def test_half_a_character_is_refused(client: httpx.AsyncClient, raw: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    reply = await client.post("/generate", content=raw, headers=headers)
    assert reply.status_code == 400
    assert "not valid JSON" in reply.json()["error"]["message"]
