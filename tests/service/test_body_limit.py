"""Every service refuses a body that is too large before it holds it, with a problem document."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from triforge.web.app import install

LIMIT = 1000


class Text(BaseModel):
    text: str


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    install(app, registry=CollectorRegistry(), max_body=LIMIT, uploads={"POST /up": 3 * LIMIT})

    @app.post("/model")
    async def model(body: Text) -> int:
        return len(body.text)

    @app.post("/raw")
    async def raw(request: Request) -> int:
        return len(await request.body())

    @app.get("/both")
    @app.patch("/both")
    def both() -> int:
        return 1

    @app.post("/up")
    async def up(request: Request) -> int:
        return sum([len(chunk) async for chunk in request.stream()])

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def chunks(total: int) -> AsyncIterator[bytes]:
    for _ in range(total // 100):
        yield b"x" * 100


@pytest.mark.parametrize("path", ["/model", "/raw"])
async def test_a_body_that_says_it_is_too_large_is_refused(
    http: httpx.AsyncClient, path: str
) -> None:
    reply = await http.post(path, json={"text": "x" * LIMIT})
    assert reply.status_code == 413
    assert reply.headers["content-type"] == "application/problem+json"
    said = reply.json()
    assert (said["type"], said["status"]) == ("urn:triforge:too_large", 413)
    assert str(LIMIT) in said["detail"]


@pytest.mark.parametrize("path", ["/model", "/raw"])
async def test_a_body_that_does_not_say_how_large_it_is_is_counted(
    http: httpx.AsyncClient, path: str
) -> None:
    reply = await http.post(
        path, content=chunks(LIMIT + 100), headers={"content-type": "application/json"}
    )
    assert (reply.status_code, reply.json()["type"]) == (413, "urn:triforge:too_large")


async def test_a_body_at_the_limit_is_read(http: httpx.AsyncClient) -> None:
    assert (await http.post("/raw", content=chunks(LIMIT))).json() == LIMIT
    assert (await http.post("/raw", content=b"x" * LIMIT)).json() == LIMIT


async def test_an_upload_has_a_limit_of_its_own(http: httpx.AsyncClient) -> None:
    assert (await http.post("/up", content=chunks(3 * LIMIT))).json() == 3 * LIMIT
    assert (await http.post("/up", content=chunks(3 * LIMIT + 100))).status_code == 413


async def test_a_method_that_a_path_does_not_have_is_answered_with_those_it_has(
    http: httpx.AsyncClient,
) -> None:
    for path, allowed in (("/both", "GET, PATCH"), ("/raw", "POST"), ("/healthz", "GET")):
        reply = await http.delete(path)
        assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
        assert reply.json()["type"] == "urn:triforge:method_not_allowed"


async def test_the_description_names_only_problem_documents_for_errors(
    http: httpx.AsyncClient,
) -> None:
    document = (await http.get("/openapi.json")).json()
    responses = document["paths"]["/model"]["post"]["responses"]
    assert set(responses) == {"200", "400", "413", "422", "503", "507"}
    for status in sorted(set(responses) - {"200"}):
        (media,) = responses[status]["content"]
        assert media == "application/problem+json"
    assert "HTTPValidationError" not in document["components"]["schemas"]
