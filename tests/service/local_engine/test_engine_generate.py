"""Seeds and refusals of the generating routes of the local engine, over in-process ASGI."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.unit.local_engine.models import random_prompts
from tests.unit.local_engine.wire import body, generate


async def test_the_same_seed_gives_the_same_output_whatever_else_runs(
    client: httpx.AsyncClient,
) -> None:
    sampling = {"max_new_tokens": 12, "sampling_seed": 77, "ignore_eos": True}
    alone = await generate(client, [5, 6, 7], sampling=sampling)
    others = [generate(client, p, sampling={"max_new_tokens": 20}) for p in random_prompts(12)]
    together = (await asyncio.gather(generate(client, [5, 6, 7], sampling=sampling), *others))[0]
    other_seed = await generate(client, [5, 6, 7], sampling=sampling | {"sampling_seed": 78})
    assert together["output_ids"] == alone["output_ids"] != other_seed["output_ids"]


async def test_requests_that_cannot_be_served_are_refused_with_their_reason(
    client: httpx.AsyncClient,
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (body([5] * 250, sampling={"max_new_tokens": 7}), "context length of 256"),
        (body([5, 100]), "input_ids: given token id 100, expected ids in [0, 99]"),
        (body(["w1"]), "input_ids must be"),
        ({"text": "w1", "input_ids": [5]}, "exactly one of text and input_ids"),
        (body([5], lora_path="x"), "loaded adapters are none"),
        (body([5], top_logprobs_num="3"), "top_logprobs_num is '3'"),
        (body([[5], [6]], rid=["a"]), "rid has 1 entries"),
    ]
    for request, says in cases:
        reply = await client.post("/generate", json=request)
        assert reply.status_code == 400, request
        assert says in reply.json()["error"]["message"]
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
        b'{"text": "\xff"}',
        b"[" * 200_000,
    ],
)
async def test_a_body_that_cannot_be_parsed_is_refused(
    client: httpx.AsyncClient, raw: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    reply = await client.post("/generate", content=raw, headers=headers)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]
