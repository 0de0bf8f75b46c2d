"""What every API's answers have in common: a newline behind JSON, and pages that load nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from triforge.errors import NotFoundError
from triforge.web.app import install
from triforge.web.origins import OriginPolicy


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI(title="triforge thing")
    install(app, origins=OriginPolicy(hosts=frozenset()))

    @app.get("/thing")
    async def thing() -> dict[str, str]:
        return {"is": "here"}

    @app.get("/lost")
    async def lost() -> None:
        raise NotFoundError("it is not here")

    @app.get("/lines")
    async def lines() -> StreamingResponse:
        return StreamingResponse(iter(["{}", "{}"]), media_type="application/x-ndjson")

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://thing") as client:
        yield client


@pytest.mark.parametrize(
    ("path", "status"),
    [("/thing", 200), ("/lost", 404), ("/nowhere", 404), ("/healthz", 200), ("/openapi.json", 200)],
)
async def test_json_ends_with_one_newline_and_has_the_length_it_says(
    http: httpx.AsyncClient, path: str, status: int
) -> None:
    reply = await http.get(path)
    assert reply.status_code == status
    assert reply.content.endswith(b"}\n")
    assert len(reply.content) == int(reply.headers["content-length"])
    assert isinstance(reply.json(), dict)


async def test_a_refusal_before_the_app_ends_with_a_newline_too(http: httpx.AsyncClient) -> None:
    reply = await http.get("/thing", headers={"host": "elsewhere.example"})
    assert (reply.status_code, reply.content[-2:]) == (403, b"}\n")


async def test_what_is_no_json_stays_as_it_is(http: httpx.AsyncClient) -> None:
    assert (await http.get("/lines")).content == b"{}{}"


async def test_the_page_of_an_api_names_no_other_host(http: httpx.AsyncClient) -> None:
    reply = await http.get("/docs")
    assert reply.status_code == 200
    assert re.findall(r"(?:https?:)?//[a-z]", reply.text) == []
    assert "connect-src 'self'" in reply.headers["content-security-policy"]
    assert (await http.get("/redoc")).status_code == 404
    assert (await http.get("/docs/other.js")).status_code == 404


@pytest.mark.skipif(
    not importlib.util.find_spec("fastapi_offline"), reason="pip install -c constraints.txt -e ."
)
@pytest.mark.parametrize("name", ["swagger-ui-bundle.js", "swagger-ui.css"])
async def test_the_files_of_the_page_come_from_the_service(
    http: httpx.AsyncClient, name: str
) -> None:
    assert f'"docs/{name}"' in (await http.get("/docs")).text.replace("'", '"')
    reply = await http.get(f"/docs/{name}")
    assert reply.status_code == 200
    assert len(reply.content) > 100_000
