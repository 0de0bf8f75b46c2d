"""Errors as problem documents, for every service."""

from __future__ import annotations

import errno

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from triforge import __version__
from triforge.errors import ConflictError, UnavailableError, WeightsError
from triforge.web.app import install


class Body(BaseModel):
    count: int


def client_of(error: Exception | None = None) -> httpx.AsyncClient:
    app = FastAPI(title="triforge policy (acts)")
    install(app)

    @app.post("/work")
    async def work(body: Body) -> Body:
        if error is not None:
            raise error
        return body

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://service")


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry_after"),
    [
        (ConflictError("taken"), 409, "conflict", None),
        (WeightsError("bad", problems=("a", "b")), 422, "weights", None),
        (UnavailableError("away", retry_after_s=0.2), 503, "unavailable", "1"),
        (UnavailableError("away", retry_after_s=2.5), 503, "unavailable", "3"),
        (OSError(errno.ENOSPC, "No space left on device"), 507, "storage", None),
        (ConnectionRefusedError("refused"), 503, "unavailable", "2"),
        (KeyError("secret"), 500, "internal", None),
        (OSError("secret"), 500, "internal", None),
    ],
)
async def test_every_error_leaves_as_a_problem_document(
    error: Exception, status: int, kind: str, retry_after: str | None
) -> None:
    async with client_of(error) as client:
        response = await client.post("/work", json={"count": 1})
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers.get("retry-after") == retry_after
    found = response.json()
    assert found["type"] == f"urn:triforge:{kind}"
    assert found.get("problems", []) == list(getattr(error, "problems", ()))
    assert "secret" not in response.text


async def test_a_service_without_a_condition_is_ready_at_once() -> None:
    async with client_of() as client:
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        shown = (await client.get("/metrics")).text
        assert "python_info" in shown
        build = f'triforge_build_info{{process="api",service="policy",version="{__version__}"}} 1.0'
        assert build in shown
