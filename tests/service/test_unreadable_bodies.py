"""A body that is no text, or that cannot be parsed or stored, is refused with a reason before a route sees it."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from tests.service.env_service import client_of
from triforge.web.app import install
from triforge.web.limits import Bounds

UPLOAD = "/upload"


class Held(BaseModel):
    """Anything may stand in it, as in the config of a run."""

    anything: dict[str, Any]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    large = Bounds(2**20, numbers=2**20)
    install(app, registry=CollectorRegistry(), bounds=large, uploads={f"POST {UPLOAD}": 10**6})
    router = APIRouter()

    @router.post("/held")
    async def held(body: Held) -> Held:
        return body

    @router.patch("/raw")
    async def raw(request: Request) -> int:
        return len(await request.body())

    @router.post("/folder")
    def folder(body: Held) -> bool:
        return Path(body.anything["x"]).is_file()

    @router.post(UPLOAD)
    async def upload(request: Request) -> int:
        return sum([len(chunk) async for chunk in request.stream()])

    app.include_router(router)
    async with client_of(app) as client:
        yield client


def held(text: bytes) -> bytes:
    return b'{"anything": {"x": "%b"}}' % text


JSON = {"content-type": "application/json"}
REFUSED = {
    "half a character": (held(rb"\ud800"), "half a character"),
    "the other half": (held(rb"a\uDC00b"), "half a character"),
    "halves that do not belong together": (held(rb"\udc00\ud800"), "half a character"),
    "half a character as a name": (rb'{"anything": {"\ud800": 1}}', "half a character"),
    "a whole one and a half": (held(rb"\ud83d\ude00\ud83d"), "half a character"),
    "half a character in UTF-8": (held(b"\xed\xa0\x80"), "no UTF-8"),
    "Latin": (held(b"\xe4"), "no UTF-8"),
    "UTF-16": (held(b"a").decode().encode("utf-16-le"), "no JSON in UTF-8"),
    "UTF-32": (held(b"a").decode().encode("utf-32"), "UTF-8"),
    "compressed": (gzip.compress(held(b"a")), "no UTF-8"),
    "nested too deeply": (b'{"anything":' * 40_000, "nested too deeply"),
    "a number without end": (b'{"anything": {"x": %b}}' % (b"9" * 5000), "digits"),
    "no end": (b'{"anything": {', "not JSON"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_an_unreadable_body_is_refused_with_the_reason(
    http: httpx.AsyncClient, what: str
) -> None:
    body, sentence = REFUSED[what]
    reply = await http.post("/held", content=body, headers=JSON)
    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/problem+json"
    assert sentence in reply.json()["detail"]


@pytest.mark.parametrize(
    "text",
    [
        rb"\ud83d\ude00",
        "\U0001f600 \u00e4".encode(),
        rb"\\ud800",
        rb"\\\\ud800",
        rb"\u0000",
        rb"\\\ud83d\ude00",
        rb"C:\\udc00",
    ],
)
async def test_text_is_taken_however_it_is_spelled(http: httpx.AsyncClient, text: bytes) -> None:
    reply = await http.post("/held", content=held(text), headers=JSON)
    assert reply.status_code == 200
    assert reply.json() == json.loads(held(text))


async def test_a_path_that_no_machine_takes_is_refused(http: httpx.AsyncClient) -> None:
    assert (await http.post("/folder", content=held(b"/etc"), headers=JSON)).json() is False
    reply = await http.post("/folder", content=held(b"/" + b"a" * 300), headers=JSON)
    assert reply.status_code == 422
    assert "path" in reply.json()["detail"]


async def test_a_route_that_reads_its_body_itself_gets_text_too_and_an_upload_is_its_own_affair(
    http: httpx.AsyncClient,
) -> None:
    assert (await http.patch("/raw", content=held(rb"\ud800"), headers=JSON)).status_code == 422
    assert (await http.patch("/raw", content=held(b"a"), headers=JSON)).json() == len(held(b"a"))
    assert (await http.patch("/raw")).json() == 0
    reply = await http.post(UPLOAD, content=held(rb"\ud800"), headers=JSON)
    assert reply.json() == len(held(rb"\ud800"))
