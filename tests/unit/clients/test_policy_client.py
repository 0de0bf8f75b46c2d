"""The policy client: one request at a time or many together."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from triforge.clients.policy import ModelClients, PolicyClient
from triforge.config import Settings
from triforge.errors import ConfigError, InputError, UnavailableError
from triforge.types import ChatMessage, GenerateRequest, Sampling, WeightsUpdate


def prompt(word: str, *, tokens: int = 8) -> GenerateRequest:
    return GenerateRequest(
        messages=(ChatMessage(role="user", content=word),),
        sampling=Sampling(max_new_tokens=tokens),
    )


class Server:
    """A service that echoes each prompt, refuses the word `bad`, and records the batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.keys: list[str | None] = []
        self.failure: httpx.Response | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.keys.append(request.headers.get("authorization"))
        if self.failure is not None:
            return self.failure
        if request.url.path == "/v1/weights":
            state = {"role": "policy", "version": 2, "uri": "/w", "engines": 1, "ready": 1}
            return httpx.Response(200, json=state)
        requests = json.loads(request.content)["requests"]
        words = [request["messages"][0]["content"] for request in requests]
        self.batches.append(words)
        if "bad" in words:
            return httpx.Response(422, json={"type": "urn:triforge:input", "detail": "bad word"})
        return httpx.Response(200, json={"replies": [self._reply(word) for word in words]})

    def _reply(self, word: str) -> dict[str, Any]:
        output = {"text": word, "ids": [], "logprobs": [], "versions": [], "finish": "stop"}
        return {"prompt_ids": [1], "outputs": [output]}

    def client(self, **options: Any) -> PolicyClient:
        return PolicyClient("http://service", transport=httpx.MockTransport(self), **options)


async def say(client: PolicyClient, word: str) -> str:
    return (await client(prompt(word))).outputs[0].text


async def test_long_requests_are_sent_alone_and_delay_no_other() -> None:
    server = Server()
    async with server.client(batch_tokens=8) as client:
        await asyncio.gather(
            *(client(prompt(word, tokens=n)) for word, n in zip("abcd", (8, 9, 1, 99), strict=True))
        )
    assert sorted(server.batches) == [["a", "c"], ["b"], ["d"]]


async def test_requests_of_one_turn_travel_together_up_to_the_limit() -> None:
    server = Server()
    async with server.client(batch=2) as client:
        words = await asyncio.gather(*(say(client, word) for word in "abcde"))
    assert words == ["a", "b", "c", "d", "e"]
    assert sorted(server.batches) == [["a", "b"], ["c", "d"], ["e"]]


async def test_requests_during_a_batch_wait_a_moment_for_more() -> None:
    server = Server()
    async with server.client(batch=3, linger_s=60.0) as client:
        first = asyncio.create_task(say(client, "a"))
        while not client._sending:  # noqa: ASYNC110 (a turn or two of the loop)
            await asyncio.sleep(0)
        await asyncio.gather(first, *(say(client, word) for word in "bcd"))
    assert server.batches == [["a"], ["b", "c", "d"]], "a full batch does not wait"


async def test_a_bad_request_fails_alone() -> None:
    server = Server()
    async with server.client(batch=8) as client:
        found = await asyncio.gather(
            *(say(client, word) for word in ("a", "bad", "c")), return_exceptions=True
        )
    assert [found[0], found[2]] == ["a", "c"]
    assert isinstance(found[1], InputError)


async def test_requests_that_are_too_large_only_together_go_one_by_one() -> None:
    server = Server()

    def answer(request: httpx.Request) -> httpx.Response:
        if len(json.loads(request.content)["requests"]) > 1:
            return httpx.Response(413, json={"type": "urn:triforge:too_large", "detail": "body"})
        return server(request)

    async with PolicyClient("http://service", transport=httpx.MockTransport(answer)) as client:
        assert await asyncio.gather(*(say(client, word) for word in "abc")) == ["a", "b", "c"]
    assert server.batches == [["a"], ["b"], ["c"]]


async def test_a_batch_is_cancelled_when_all_its_callers_are() -> None:
    asked_for, ended = asyncio.Event(), asyncio.Event()

    async def answer(_: httpx.Request) -> httpx.Response:
        asked_for.set()
        try:
            return await asyncio.Future()
        finally:
            ended.set()

    async with PolicyClient("http://service", transport=httpx.MockTransport(answer)) as client:
        callers = [asyncio.create_task(say(client, word)) for word in "ab"]
        await asked_for.wait()
        callers[0].cancel()
        await asyncio.wait([callers[0]])
        assert not ended.is_set()
        callers[1].cancel()
        await ended.wait()
        await asyncio.wait(callers)


async def test_waiting_requests_of_a_closed_client_fail() -> None:
    client = Server().client(linger_s=60.0)
    waiting = asyncio.create_task(say(client, "a"))
    await asyncio.sleep(0)  # it has joined, and nothing has left yet
    await client.close()
    with pytest.raises(UnavailableError, match="http://service: the client was closed"):
        await waiting


async def test_a_list_for_several_models_goes_to_the_service_of_each_and_is_answered_in_order() -> (
    None
):
    servers = {"127.0.0.1:8011": Server(), "second:1": Server()}
    transport = httpx.MockTransport(lambda r: servers[r.url.netloc.decode()](r))
    clients = ModelClients(Settings(models="second=http://second:1"), "reward", transport=transport)
    wanted = [("a", ""), ("b", "second"), ("c", "reward"), ("d", "second")]
    replies = await clients.generate_many(
        [prompt(word).model_copy(update={"model": model}) for word, model in wanted]
    )
    assert [reply.outputs[0].text for reply in replies] == ["a", "b", "c", "d"]
    assert [server.batches for server in servers.values()] == [[["a", "c"]], [["b", "d"]]]
    with pytest.raises(ConfigError, match="TRIFORGE_MODELS=third="):
        await clients.generate_many([prompt("a").model_copy(update={"model": "third"})])


async def test_short_lists_of_several_callers_travel_together_and_a_bad_one_fails_alone() -> None:
    server = Server()
    async with server.client(batch=8) as client:
        lists = [["a", "b"], ["c"], ["d", "bad"]]
        calls = [client.generate_many([prompt(word) for word in words]) for words in lists]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert server.batches[0] == ["a", "b", "c", "d", "bad"]
        assert isinstance(found[2], InputError)
        texts = [[r.outputs[0].text for r in f] for f in found if not isinstance(f, BaseException)]
        assert texts == [["a", "b"], ["c"]]
        await client.generate_many([prompt(word) for word in "abcdefgh"])
    assert server.batches[-1] == list("abcdefgh"), "a list that fills a batch goes by itself"


async def test_weights_travel_with_the_admin_s_key() -> None:
    server = Server()
    async with server.client(api_key="user", admin_api_key="admin") as client:
        state = await client.update_weights(WeightsUpdate(version=2, uri="/w"))
        assert await client.weights() == state
        await client(prompt("a"))
    assert server.keys == ["Bearer admin", "Bearer user", "Bearer user"]
