"""Any OpenAI-compatible endpoint as a `Generate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from triforge.clients.openai import OpenAIGenerate, is_openai_url
from triforge.errors import InputError, PolicyError, UnavailableError
from triforge.types import ChatMessage, GenerateRequest, Sampling

Handler = Callable[[httpx.Request], httpx.Response]


def endpoint(handler: Handler) -> OpenAIGenerate:
    return OpenAIGenerate(
        "http://models/v1", transport=httpx.MockTransport(handler), patience_s=0.0
    )


def ask(**sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        messages=(ChatMessage(role="user", content="hi"),), n=2, sampling=Sampling(**sampling)
    )


def talk(*texts: str) -> httpx.Response:
    choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in texts]
    return httpx.Response(200, json={"choices": choices})


async def test_an_openai_endpoint_is_a_generate() -> None:
    bodies: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "smol"}]})
        assert request.url.path == "/v1/chat/completions"
        bodies.append(json.loads(request.content))
        return talk("one", "two")

    generate = endpoint(handler)
    reply = await generate(ask(regex="one|two", seed=3, max_new_tokens=5))
    await generate(ask(json_schema='{"type": "object"}'))
    await generate.close()
    assert [output.text for output in reply.outputs] == ["one", "two"]
    first, second = bodies
    assert first["model"] == "smol"
    assert first["messages"] == [{"role": "user", "content": "hi"}]
    assert (first["n"], first["max_tokens"], first["seed"]) == (2, 5, 3)
    assert first["regex"] == "one|two"
    assert second["response_format"]["json_schema"]["schema"] == {"type": "object"}


async def test_an_endpoint_that_refuses_the_constraint_is_asked_without_it() -> None:
    asked: list[bool] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "smol"}]})
        asked.append("regex" in json.loads(request.content))
        if asked[-1]:
            return httpx.Response(400, json={"error": {"message": "unknown argument: regex"}})
        return talk("one")

    generate = endpoint(handler)
    for _ in range(2):
        assert (await generate(ask(regex="one"))).outputs[0].text == "one"
    await generate.close()
    assert asked == [True, False, False]


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (httpx.Response(200, json={"choices": []}), PolicyError),
        (httpx.Response(200, json={"hello": 1}), PolicyError),
        (httpx.Response(200, text="<html>"), PolicyError),
        (httpx.Response(503), UnavailableError),
        (httpx.Response(400, json={"error": {"message": "too long"}}), InputError),
    ],
)
async def test_errors_of_endpoint(response: httpx.Response, error: type[Exception]) -> None:
    generate = OpenAIGenerate(
        "http://models/v1", "m", transport=httpx.MockTransport(lambda _: response), patience_s=0.0
    )
    with pytest.raises(error):
        await generate(ask())
    await generate.close()


def test_an_address_with_a_path_is_openai_compatible() -> None:
    assert is_openai_url("https://api.example.org/v1")
    assert not is_openai_url("http://127.0.0.1:8021")
    assert not is_openai_url("http://127.0.0.1:8021/")
