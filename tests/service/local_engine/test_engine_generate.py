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
META = {
    "id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "cached_tokens_details",
    "reasoning_tokens", "weight_version", "weight_versions", "num_retractions", "dp_rank", "e2e_latency",
    "response_sent_to_client_ts",
}  # fmt: skip
LOGPROBS = {"input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length"}


async def test_a_result_has_sglangs_fields(client: httpx.AsyncClient) -> None:
    result = await generate(
        client, [5, 6, 7], rid="mine", sampling={"max_new_tokens": 4, "ignore_eos": True}
    )
    meta = result["meta_info"]
    assert set(result) == {"text", "output_ids", "meta_info"}
    assert set(meta) == META | LOGPROBS
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 4)
    assert meta["weight_version"] == "0"
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 4}]
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [
        [i, None] for i in result["output_ids"]
    ]
    assert meta["input_token_logprobs"] == []
    plain = await client.post(
        "/generate", json={"text": "w1 w2", "sampling_params": {"max_new_tokens": 1}}
    )
    assert set(plain.json()["meta_info"]) == META
    assert plain.json()["meta_info"]["prompt_tokens"] == 2


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


async def test_prompt_logprobs_begin_with_null(client: httpx.AsyncClient, folder: Path) -> None:
    ids = list(range(10, 22))
    result = await generate(client, ids, logprob_start_len=0, sampling={"max_new_tokens": 0})
    found = result["meta_info"]["input_token_logprobs"]
    assert result["output_ids"] == []
    assert found[0] == [None, 10, None]
    expected = plain_logprobs(plain_model(folder), ids[:1], ids[1:])
    assert [entry[0] for entry in found[1:]] == pytest.approx(expected, abs=CLOSE)


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


async def test_a_batch_may_set_everything_for_each_prompt(client: httpx.AsyncClient) -> None:
    rows = await generate(
        client, [[5], [6, 7]], rid=["a", "b"], return_logprob=[True, False],
        sampling=[{"max_new_tokens": 1}, {"max_new_tokens": 2, "ignore_eos": True}],
    )  # fmt: skip
    assert [row["meta_info"]["id"] for row in rows] == ["a", "b"]
    assert [len(row["output_ids"]) for row in rows] == [1, 2]
    assert ["output_token_logprobs" in row["meta_info"] for row in rows] == [True, False]
    assert isinstance(await generate(client, [[5]], sampling={"max_new_tokens": 1}), list)


async def test_the_same_seed_gives_the_same_output_whatever_else_runs(
    client: httpx.AsyncClient,
) -> None:
    sampling = {"max_new_tokens": 12, "sampling_seed": 77, "ignore_eos": True}
    alone = await generate(client, [5, 6, 7], sampling=sampling)
    others = [generate(client, p, sampling={"max_new_tokens": 20}) for p in random_prompts(12)]
    together = (await asyncio.gather(generate(client, [5, 6, 7], sampling=sampling), *others))[0]
    other_seed = await generate(client, [5, 6, 7], sampling=sampling | {"sampling_seed": 78})
    assert together["output_ids"] == alone["output_ids"] != other_seed["output_ids"]


async def test_stop_conditions_end_the_output_and_are_cut_from_the_text(
    client: httpx.AsyncClient,
) -> None:
    sampling = {"max_new_tokens": 8, "sampling_seed": 3}
    full = await generate(client, [5], sampling=sampling)
    ids, words = full["output_ids"], full["text"].split()
    token = await generate(client, [5], sampling=sampling | {"stop_token_ids": [ids[3]]})
    end = ids.index(ids[3]) + 1
    assert token["output_ids"] == ids[:end]
    assert token["text"].split() == words[: end - 1]
    assert token["meta_info"]["finish_reason"] == {"type": "stop", "matched": ids[3]}
    pair = f"{words[3]} {words[4]}"  # across the border of two tokens
    string = await generate(client, [5], sampling=sampling | {"stop": [pair]})
    assert string["output_ids"] == ids[:5]
    assert string["text"].strip() == " ".join(words[:3])
    assert string["meta_info"]["finish_reason"] == {"type": "stop", "matched": pair}
    through = {"stop_token_ids": [ids[3]], "ignore_eos": True}  # which SGLang takes to mean both
    assert (await generate(client, [5], sampling=sampling | through))["output_ids"] == ids


async def test_an_end_token_is_the_last_of_an_output(
    client: httpx.AsyncClient,
) -> None:
    prompts = [[5 + i] for i in range(60)]
    free = await generate(client, prompts, sampling={"max_new_tokens": 60, "temperature": 1.5})
    assert any(row["output_ids"][-1] == 2 for row in free)
    assert all(2 not in row["output_ids"][:-1] for row in free)


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


async def test_streamed_events_grow_to_the_whole_result(client: httpx.AsyncClient) -> None:
    sampling = {"max_new_tokens": 12, "sampling_seed": 5, "ignore_eos": True}
    whole = await generate(client, [5, 6], sampling=sampling)
    reply = await client.post("/generate", json=body([5, 6], sampling=sampling, stream=True))
    assert reply.headers["content-type"] == "text/event-stream"
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    lengths = [len(event["output_ids"]) for event in events]
    assert lengths == sorted(lengths)
    assert all(
        event["output_ids"] == whole["output_ids"][:n]
        for event, n in zip(events, lengths, strict=True)
    )
    assert [e["meta_info"]["finish_reason"] for e in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["text"] == whole["text"]
    assert scores(events[-1]) == pytest.approx(scores(whole), abs=CLOSE)


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
