"""Chat answers as they are written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest

from services.policy.api import streams
from services.policy.api.chat import ChatDialect, ChatRequest
from services.policy.engines.protocol import Partial, Prompt
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import merged
from tests.fake_engine import FakeEngine
from tests.unit.policy.conftest import MakeService, Service, start
from triforge.errors import InputError, PolicyError, TriforgeError
from triforge.types import Sampling

CHAT = {"model": "policy", "messages": [{"role": "user", "content": "go fridge"}], "stream": True}


@pytest.fixture
async def service(make_service: MakeService) -> Service:
    service = await start(make_service, FakeEngine(answer=lambda *_: [7, 8, 7, 1], version="3"))
    service.fakes[0].decode = service.weights.renderer.decode
    return service


async def events(service: Service, **extra: Any) -> list[dict[str, Any]]:
    async with service.client() as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, **extra})
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    found = [json.loads(line) for line in lines if line != "[DONE]"]
    assert (lines[-1] == "[DONE]") is ("error" not in found[-1])
    return found


def texts(chunks: list[dict[str, Any]], number: int = 0) -> list[str]:
    choices = [c["choices"][0] for c in chunks if c.get("choices")]
    return [
        c["delta"]["content"] for c in choices if c["index"] == number and c["delta"].get("content")
    ]


async def test_every_token_is_an_event_of_its_own(service: Service) -> None:
    chunks = await events(service)
    assert texts(chunks) == ["cup", " fridge", " cup"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["metadata"] == {"weight_version": "3"}
    (body,) = service.generate_bodies()
    assert body["stream"] is True


async def test_log_probabilities_come_with_their_tokens(service: Service) -> None:
    chunks = await events(service, logprobs=True)
    shown = [c["choices"][0]["logprobs"] for c in chunks]
    tokens = [t["token"] for found in shown if found for t in found["content"]]
    assert tokens == ["cup", "fridge", "cup", "</s>"]


async def test_several_samples_are_separated_by_their_index(service: Service) -> None:
    chunks = await events(service, n=3, seed=5, stream_options={"include_usage": True})
    assert all(texts(chunks, number) == ["cup", " fridge", " cup"] for number in range(3))
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert len({b["sampling_params"]["sampling_seed"] for b in service.generate_bodies()}) == 3


@pytest.mark.parametrize(
    ("options", "status", "kind"),
    [
        ({"fail_next": 1, "fail_status": 400}, 422, "input"),
        ({"fail_next": 1, "fail_status": 429}, 429, "busy"),
    ],
)
async def test_what_fails_before_the_first_token_is_a_problem_document(
    service: Service, options: dict[str, Any], status: int, kind: str
) -> None:
    for name, value in options.items():
        setattr(service.fakes[0], name, value)
    async with service.client() as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["type"]) == (status, f"urn:triforge:{kind}")
    assert ("retry-after" in response.headers) is (status in (429, 503))


async def test_retry_before_the_first_token_only(make_service: MakeService) -> None:
    service = await start(
        make_service, FakeEngine(fail_next=1), FakeEngine(answer=lambda *_: [7, 8, 1])
    )
    assert len(texts(await events(service))) == 2

    class Breaks(FakeEngine):
        def _result(self, ids: Any, output: Any, *rest: Any) -> dict[str, Any]:
            found = super()._result(ids, output, *rest)
            return found if len(output) < 2 else {"broken": True}

    service = make_service(Breaks(answer=lambda *_: [7, 8, 1]), FakeEngine())
    service.pool.members[1].in_flight = 1  # so that the first is the idlest
    await service.start()
    chunks = await events(service)
    assert len(texts(chunks)) == 1
    assert chunks[-1]["error"]["type"] == "policy"
    assert service.fakes[1].paths().count("/generate") == 0


async def numbers(*values: int, fail: bool = False) -> AsyncIterator[int]:
    for value in values:
        await asyncio.sleep(0)
        yield value
    if fail:
        raise ValueError("broken")


async def test_the_first_failure_ends_all_merged_streams() -> None:
    with pytest.raises(ValueError, match="broken"):
        _ = [piece async for piece in merged([numbers(1, fail=True), numbers(*range(99))])]


async def test_text_that_an_engine_takes_back_ends_the_stream_with_an_error(
    service: Service,
) -> None:
    service.fakes[0].decode = lambda ids: "cup" if len(ids) < 3 else "fridge"
    chunks = await events(service)
    assert texts(chunks) == ["cup"]
    assert chunks[-1]["error"]["type"] == "policy"


async def test_an_answer_of_another_process_is_not_joined_to_what_was_sent(
    service: Service,
) -> None:
    body = ChatRequest.model_validate(CHAT)
    dialect = ChatDialect(body, model="policy", renderer=service.weights.renderer, version=0)

    def piece(text: str, finish: Any = None) -> Partial:
        return Partial(text, (5,), (-0.5,), (), 3, 0, finish)

    async def pieces() -> AsyncGenerator[tuple[int, Partial], None]:
        yield 0, piece("a cup")
        yield 0, piece("a fridge", "stop")

    lines = [line async for line in await streams.events(pieces(), dialect)]
    assert "a cup" in lines[-2]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["type"] == "policy"


async def test_an_error_inside_an_engine_s_stream_is_understood() -> None:
    cases: list[tuple[str, type[TriforgeError]]] = [
        ('{"error": {"message": "too long", "code": 400}}', InputError),
        ('{"error": {"message": "died", "code": 500}}', PolicyError),
        ("{broken", PolicyError),
    ]
    for line, kind in cases:
        body = f"data: {line}\n\ndata: [DONE]\n\n"
        transport = httpx.MockTransport(lambda _, body=body: httpx.Response(200, text=body))  # type: ignore[misc]
        engine = SGLangEngine("http://e", transport=transport)
        with pytest.raises(kind, match="http://e"):
            _ = [p async for p in engine.stream(Prompt([1], Sampling()))]
