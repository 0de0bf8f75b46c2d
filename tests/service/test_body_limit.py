"""Every service refuses a body that is too large before it holds it, with a problem document."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from tests.service.env_service import api, client_of
from tests.service.keyed import fresh
from triforge.json_text import MOST_PARTS
from triforge.web.app import install
from triforge.web.limits import SMALL, Bounds

LIMIT = 1000
JSON = {"content-type": "application/json"}
NUMBERS = 1_000_000


class Text(BaseModel):
    text: str


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    install(
        app,
        registry=CollectorRegistry(),
        bounds=Bounds(LIMIT),
        bodies={"POST /large": Bounds(64 * 2**20, numbers=NUMBERS)},
        uploads={"POST /up": 3 * LIMIT},
    )

    @app.post("/large")
    async def large(body: dict[str, list[Any]]) -> int:
        return len(body["a"])

    @app.post("/model")
    async def model(body: Text) -> int:
        return len(body.text)

    @app.post("/raw")
    async def raw(request: Request) -> int:
        return len(await request.body())

    @app.post("/up")
    async def up(request: Request) -> int:
        return sum([len(chunk) async for chunk in request.stream()])

    async with client_of(app) as client:
        yield client


async def chunks(total: int) -> AsyncIterator[bytes]:
    for _ in range(total // 100):
        yield b"x" * 100


@pytest.mark.parametrize("path", ["/model", "/raw"])
async def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(
    http: httpx.AsyncClient, path: str
) -> None:
    for body in (b"x" * (LIMIT + 100), chunks(LIMIT + 100)):
        reply = await http.post(path, content=body, headers=JSON)
        assert (reply.status_code, reply.json()["type"]) == (413, "urn:triforge:too_large")
        assert reply.headers["content-type"] == "application/problem+json"


async def test_a_body_at_the_limit_is_read(http: httpx.AsyncClient) -> None:
    for body in (chunks(LIMIT), b"x" * LIMIT):
        assert (await http.post("/raw", content=body, headers=JSON)).json() == LIMIT


async def test_an_upload_has_a_limit_of_its_own(http: httpx.AsyncClient) -> None:
    assert (await http.post("/up", content=chunks(3 * LIMIT), headers=JSON)).json() == 3 * LIMIT
    reply = await http.post("/up", content=chunks(3 * LIMIT + 100), headers=JSON)
    assert reply.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[%b]}' % b",".join([b"[]"] * (MOST_PARTS + 1)),
        b'{"a":[%b]}' % b",".join([b"{}"] * (MOST_PARTS + 1)),
        b'{"a":[%b]}' % b",".join([b'""'] * (MOST_PARTS + 1)),
        b'{"a":[%b]}' % b",".join([b"1"] * (MOST_PARTS + NUMBERS + 2)),
        b'{"a":"' + rb"\"" * (4 * MOST_PARTS),  # one string without an end
        b'{"a":%b' % (b'"\\' * (4 * MOST_PARTS)),
        b"[" * (MOST_PARTS + 1),
    ],
    ids=["lists", "objects", "strings", "numbers", "an open string", "backslashes", "depth"],
)
async def test_what_would_take_gigabytes_when_it_is_parsed_is_refused_before(
    http: httpx.AsyncClient, body: bytes
) -> None:
    tracemalloc.start()
    begun = time.process_time()
    try:
        reply = await http.post("/large", content=body, headers=JSON)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    taken = time.process_time() - begun
    assert reply.status_code in (413, 422)  # not parsed, or one string that has no end
    assert peak < 40 * 2**20
    assert taken < 5  # a quadratic scan of these takes minutes


async def test_brackets_commas_and_quotes_of_a_text_do_not_count(http: httpx.AsyncClient) -> None:
    text = '[{"a": 1}, {}, "x\\"],' * MOST_PARTS
    assert (await http.post("/large", json={"a": [text]})).json() == 1
    ids = [7] * NUMBERS
    assert (await http.post("/large", json={"a": ids})).json() == NUMBERS


async def test_routes_of_a_few_fields_take_kibibytes(tmp_path: Path) -> None:
    async with client_of(api(fresh(tmp_path))) as http:
        change = {"by": "d" * 200, "reason": "\N{GRINNING FACE}" * 2000}  # as JSON spells it, 24 KB
        assert (await http.post("/v1/pools/p/pause", json=change)).status_code == 404
        reply = await http.post("/v1/pools/p/pause", json={"reason": "x" * SMALL.size})
    assert reply.status_code == 413


async def test_a_pool_of_json_that_is_no_task_is_refused_before_it_is_parsed(
    tmp_path: Path,
) -> None:
    async with client_of(api(fresh(tmp_path))) as http:
        for number, status in ((1_200_000, 413), (1_500_000, 422)):  # too many; more than 4 MiB
            body = b'{"a":[%b]}' % b",".join([b"[]"] * number)
            reply = await http.post("/v1/pools", content=body, headers=JSON)
            assert reply.status_code == status, reply.text
        names = ",".join(f'"{number}":0' for number in range(100_000))
        begun = time.process_time()
        reply = await http.post("/v1/pools", content=f'{{{names},"99999":0}}', headers=JSON)
    assert reply.status_code == 422
    assert "99999: given twice" in reply.json()["detail"]
    assert time.process_time() - begun < 5
