"""Swagger UI of every API, which loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from triforge.web.app import install
from triforge.web.origins import OriginPolicy


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI(title="triforge thing")
    install(app, origins=OriginPolicy(hosts=frozenset()))

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://thing") as client:
        yield client


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
async def test_files_come_from_the_service(http: httpx.AsyncClient, name: str) -> None:
    assert f'"docs/{name}"' in (await http.get("/docs")).text.replace("'", '"')
    reply = await http.get(f"/docs/{name}")
    assert reply.status_code == 200
    assert len(reply.content) > 100_000
