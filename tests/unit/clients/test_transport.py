"""Problem documents become errors again; busy servers are asked again for as long as the caller has patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from urllib.parse import unquote

import httpx
import pytest

from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.transport import (
    UnreachableError,
    get_json,
    http_client,
    post_json,
    request,
)
from triforge.errors import (
    BusyError,
    ConfigError,
    ConflictError,
    InputError,
    NotFoundError,
    PolicyError,
    TriforgeError,
    UnavailableError,
)

Answer = Callable[[httpx.Request], httpx.Response]


def client_of(
    *answers: httpx.Response | Exception,
) -> tuple[httpx.AsyncClient, list[httpx.Request]]:
    """A client whose server gives these answers in turn, and what it was sent."""
    left, seen = list(answers), []

    def answer(sent: httpx.Request) -> httpx.Response:
        seen.append(sent)
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return http_client("http://server", transport=httpx.MockTransport(answer)), seen


def busy(seconds: str = "0") -> httpx.Response:
    return httpx.Response(503, headers={"retry-after": seconds}, text="busy")


OK = httpx.Response(200, json={"a": 1})
LOST = httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (httpx.Response(409, json={"type": "urn:triforge:conflict", "detail": "reason"}), ConflictError),
        (httpx.Response(500, json={"type": "urn:triforge:internal", "detail": "reason"}), TriforgeError),
        (httpx.Response(400, json={"error": {"message": "reason"}}), InputError),
        (httpx.Response(400, json={"success": False, "message": "reason"}), InputError),
        (httpx.Response(401, json={"error": "reason"}), ConfigError),
        (httpx.Response(404, text="reason"), NotFoundError),
        (httpx.Response(429, text="reason"), BusyError),
        (httpx.Response(503, text="reason"), UnavailableError),
        (httpx.Response(502, text="reason"), PolicyError),
        (httpx.Response(500, json=["reason"]), TriforgeError),
    ],
)  # fmt: skip
async def test_response_to_error(response: httpx.Response, error: type[TriforgeError]) -> None:
    client, _ = client_of(response)
    with pytest.raises(TriforgeError, match="reason") as caught:
        await request(client, "GET", "/x")
    assert type(caught.value) is error


async def test_problems_and_the_time_to_wait_come_back() -> None:
    body = {"type": "urn:triforge:unavailable", "detail": "d", "problems": ["a", "b"]}
    client, _ = client_of(httpx.Response(503, headers={"retry-after": "7"}, json=body))
    with pytest.raises(UnavailableError) as caught:
        await get_json(client, "/x")
    assert caught.value.problems == ("a", "b")
    assert caught.value.retry_after_s == 7


async def test_a_busy_server_is_asked_again_within_the_deadline() -> None:
    client, seen = client_of(busy(), httpx.Response(429, headers={"retry-after": "0"}), OK)
    assert await post_json(client, "/x", {}, deadline_s=60) == {"a": 1}
    assert len(seen) == 3


async def test_a_server_that_wants_more_time_than_there_is_is_not_asked_again() -> None:
    client, seen = client_of(busy("3600"), OK)
    with pytest.raises(UnavailableError):
        await post_json(client, "/x", {}, deadline_s=60)
    assert len(seen) == 1


async def test_busy_server_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    too_much = httpx.Response(429, headers={"retry-after": "30"})
    client, seen = client_of(*[too_much] * 20, OK)
    await request(client, "POST", "/x", deadline_s=1, busy_s=60, repeatable=True)
    assert len(seen) == 21
    assert all(30 <= wait <= 45 for wait in waits)  # never earlier than the header
    assert len(set(waits)) > 10  # and not all at once

    away = httpx.Response(503, headers={"retry-after": "30"})
    client, seen = client_of(away, OK)
    with pytest.raises(UnavailableError):
        await request(client, "POST", "/x", deadline_s=1, busy_s=60, repeatable=True)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("method", "repeatable", "sent"),
    [("GET", None, 2), ("POST", True, 2), ("POST", None, 1), ("GET", False, 1)],
)
async def test_lost_connection(method: str, repeatable: bool | None, sent: int) -> None:
    client, seen = client_of(LOST, OK)
    with pytest.raises(UnreachableError, match="http://server") if sent == 1 else nullcontext():
        await request(client, method, "/x", body={}, deadline_s=60, repeatable=repeatable)
    assert len(seen) == sent


async def test_the_key_and_the_parameters_are_sent() -> None:
    seen: list[httpx.Request] = []

    def answer(sent: httpx.Request) -> httpx.Response:
        seen.append(sent)
        return OK

    client = http_client("http://server/base/", transport=httpx.MockTransport(answer), api_key="k")
    await get_json(client, "/x", params={"a": 1, "b": None})
    assert str(seen[0].url) == "http://server/base/x?a=1"
    assert seen[0].headers["authorization"] == "Bearer k"


async def test_a_request_without_a_body_names_json_over_the_real_network() -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, http_client(f"http://127.0.0.1:{port}") as client:
        await post_json(client, "/v1/runs/r/stop", None)
    assert b"\r\ncontent-type: application/json\r\n" in heads[0].lower()


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a?b#c", "\x1c\u00fc \n", "%2F", "a;b&c"])
async def test_a_name_stays_one_segment_of_the_path_whatever_stands_in_it(name: str) -> None:
    asked: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path)
        return httpx.Response(404, json={"type": "urn:triforge:not_found", "detail": "none"})

    client = EnvAdapterClient("http://services", transport=httpx.MockTransport(answer))
    with pytest.raises(NotFoundError):
        await client.pool(name)
    await client.close()
    (path,) = asked
    assert path.count(b"/") == 3
    assert path.startswith(b"/v1/pools/")
    assert unquote(path.removeprefix(b"/v1/pools/").decode()) == name


async def test_an_address_that_no_service_takes_is_the_callers_error() -> None:
    async with EnvAdapterClient("http://env_adapter") as client:
        with pytest.raises(InputError, match="'query' too long; a service takes addresses of at"):
            await client.check_pool("p", {"words": "a" * 70_000})
