"""The OpenAI-compatible routes of the local engine over in-process ASGI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.local_engine.engine import Engine
from tests.unit.local_engine.models import build_folder, byte_tokenizer, new_engine
from tests.unit.local_engine.wire import client_of


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    if body.get("stream"):
        lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]
    return reply.json()


async def test_chat_renders_the_template_and_answers_in_openais_form(
    client: httpx.AsyncClient,
) -> None:
    request = {
        "model": "tiny", "messages": [{"role": "user", "content": "w1 w2"}], "max_tokens": 6, "seed": 3, "n": 2,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    reply = (await client.post("/v1/chat/completions", json=request)).json()
    direct = {"text": "user w1 w2 </s> assistant", "sampling_params": {"max_new_tokens": 6, "sampling_seed": 3, "n": 2}}  # fmt: skip
    expected = (await client.post("/generate", json=direct)).json()
    assert [c["message"]["content"] for c in reply["choices"]] == [row["text"] for row in expected]
    assert [c["finish_reason"] for c in reply["choices"]] == [
        row["meta_info"]["finish_reason"]["type"] for row in expected
    ]
    tokens = sum(len(row["output_ids"]) for row in expected)
    assert reply["usage"]["completion_tokens"] == tokens
    assert reply["usage"]["prompt_tokens"] == expected[0]["meta_info"]["prompt_tokens"]
    content = reply["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(content)
    spans = [{"version": "0", "start": 0, "end": len(expected[0]["output_ids"])}]
    assert reply["metadata"] == {"weight_version": "0", "weight_versions": spans}


async def test_streamed_chat_deltas_join_to_the_whole_answer(tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "bytes", tokenizer=byte_tokenizer())
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    engine = new_engine(folder)
    engine.start()
    try:
        async with client_of(engine) as client:
            messages = [{"role": "user", "content": [{"type": "text", "text": "hé"}]}]
            request = {"messages": messages, "max_tokens": 60, "seed": 1, "stop": ["@"]}
            whole = (await client.post("/v1/chat/completions", json=request)).json()
            stream = request | {"stream": True, "stream_options": {"include_usage": True}}
            reply = await client.post("/v1/chat/completions", json=stream)
    finally:
        engine.stop()
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    assert deltas[0]["role"] == "assistant"
    joined = "".join(d.get("content", "") for d in deltas)
    assert joined == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == whole["usage"]


async def test_a_chat_that_cannot_be_served_says_why(client: httpx.AsyncClient) -> None:
    for request, says in (
        ({"messages": []}, "non-empty list"),
        (
            {"messages": [{"role": "user", "content": "w1"}], "tool_choice": "required"},
            "tool_choice is 'required'",
        ),
        (
            {"messages": [{"role": "user", "content": "w1"}], "response_format": {"type": "xml"}},
            "xml",
        ),
    ):
        reply = await client.post("/v1/chat/completions", json=request)
        assert reply.status_code == 400
        assert says in reply.json()["message"]


async def test_streamed_chat_logprobs_are_those_of_the_whole_answer(
    client: httpx.AsyncClient,
) -> None:
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": "w1"}], "max_tokens": 5, "temperature": 0.0, "ignore_eos": True,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    whole = await post(client, "/v1/chat/completions", **request)
    chunks = await post(client, "/v1/chat/completions", **request, stream=True)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert choices[-1]["delta"] == {"reasoning_content": None}
    assert choices[-1]["finish_reason"] == "length"
    pieces = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    expected = whole["choices"][0]["logprobs"]["content"]
    assert [p["token"] for p in pieces] == [e["token"] for e in expected]
    assert [p["logprob"] for p in pieces] == pytest.approx([e["logprob"] for e in expected])
    assert [len(p["top_logprobs"]) for p in pieces] == [2] * 5


async def test_tools_reach_the_template_unless_they_are_switched_off(tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "bytes", tokenizer=byte_tokenizer())
    (folder / "chat_template.jinja").write_text("{{ tools | tojson if tools else 'none' }}")
    engine = new_engine(folder)
    engine.start()
    try:
        async with client_of(engine) as client:
            request = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
            tool = {"type": "function", "function": {"name": "look"}}
            sizes = [
                (await post(client, "/v1/chat/completions", **request, **more))["usage"][
                    "prompt_tokens"
                ]
                for more in ({"tools": [tool]}, {"tools": [tool], "tool_choice": "none"}, {})
            ]
    finally:
        engine.stop()
    assert sizes == [len(json.dumps([tool])), len("none"), len("none")]


async def test_completions_take_texts_and_ids_and_answer_each_prompt_n_times(
    client: httpx.AsyncClient,
) -> None:
    request: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    one = await post(client, "/v1/completions", prompt="w1 w2", **request)
    ids = one_ids = [15, 16]  # "w1 w2"
    assert one["object"] == "text_completion"
    assert one["choices"][0].keys() == {
        "index",
        "text",
        "logprobs",
        "finish_reason",
        "matched_stop",
    }
    assert one["choices"][0]["finish_reason"] == "length"
    assert one["usage"]["total_tokens"] == 6
    assert one["metadata"]["weight_versions"] == [{"version": "0", "start": 0, "end": 4}]
    same = await post(client, "/v1/completions", prompt=one_ids, **request)
    assert same["choices"][0]["text"] == one["choices"][0]["text"]
    many = await post(client, "/v1/completions", prompt=[ids, "w5"], n=2, **request)
    assert [c["index"] for c in many["choices"]] == [0, 1, 2, 3]
    assert many["choices"][1]["text"] == one["choices"][0]["text"]
    assert many["usage"]["prompt_tokens"] == 3
    assert many["usage"]["completion_tokens"] == 16
    default = await post(client, "/v1/completions", prompt="w1", ignore_eos=True)
    assert default["usage"]["completion_tokens"] == 16


async def test_echoed_completions_score_their_prompt(client: httpx.AsyncClient) -> None:
    request: dict[str, Any] = {
        "prompt": [15, 16, 17], "max_tokens": 2, "temperature": 0.0, "ignore_eos": True, "echo": True, "logprobs": 2,
    }  # fmt: skip
    found = (await post(client, "/v1/completions", **request))["choices"][0]
    scores = found["logprobs"]
    assert found["text"].startswith("w1 w2 w3")
    assert scores["tokens"][:3] == ["w1", "w2", "w3"]
    assert scores["token_logprobs"][0] is None
    assert all(value < 0 for value in scores["token_logprobs"][1:])
    assert len(scores["text_offset"]) == len(scores["top_logprobs"]) == 5
    chunks = await post(client, "/v1/completions", **request, stream=True, stream_options={"include_usage": True})  # fmt: skip
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == found["text"]
    streamed = [t for c in chunks[:-1] for t in c["choices"][0]["logprobs"]["tokens"]]
    assert streamed == scores["tokens"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2


async def test_a_completion_that_cannot_be_served_says_why(client: httpx.AsyncClient) -> None:
    for request, says in (
        ({}, "prompt is None"),
        ({"prompt": []}, "none of them empty"),
        ({"prompt": [[5], []]}, "none of them empty"),
        ({"prompt": "w1", "logprobs": 21}, "logprobs is 21"),
        ({"prompt": "w1", "best_of": 3}, "best_of is not supported"),
        ({"prompt": "w1", "suffix": "w2"}, "suffix is not supported"),
        ({"prompt": "w1", "max_tokens": 256}, "context length of 256"),
        ({"prompt": "w1", "logit_bias": {"100": 1}}, "logit_bias names token id 100"),
    ):
        reply = await client.post("/v1/completions", json=request)
        assert reply.status_code == 400, request
        assert says in reply.json()["message"]
        assert reply.json().keys() == {"object", "message", "type", "param", "code"}


async def test_cached_tokens_are_counted_where_the_engine_is_told_to(engine: Engine) -> None:
    async with client_of(engine, cache_report=True) as client:
        request: dict[str, Any] = {"prompt": [20, 21, 22, 23], "max_tokens": 1}
        await post(client, "/v1/completions", **request)
        again = await post(client, "/v1/completions", **request)
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
