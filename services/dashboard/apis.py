"""The APIs of a deployment, called with the key of a visitor."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

import httpx
from fastapi import Depends, Header, Request
from pydantic import BaseModel

from triforge.clients.transport import (
    LOST,
    bearer,
    error_of,
    http_client,
    parse_json,
    request,
    segment,
    streamed,
)
from triforge.config import Settings
from triforge.errors import ForbiddenError, TriforgeError, UnauthorizedError

M = TypeVar("M", bound=BaseModel)

_ANSWER_S = 30.0
_READY_S = 3.0


class KeyRefusedError(TriforgeError):
    """An API that asks for a key, or for another one."""

    kind = "key_refused"
    status = 401


class Apis:
    """The connections to the APIs of a deployment.

    Args:
        addresses: URL of each service by the name shown; `trainer` and `env_adapter` are among them.
        transport: replaces the network in tests.
    """

    def __init__(
        self, addresses: Mapping[str, str], *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.addresses = dict(addresses)
        self._clients = {
            name: http_client(url, timeout_s=_ANSWER_S, transport=transport)
            for name, url in addresses.items()
        }

    @classmethod
    def of(cls, settings: Settings, *, transport: httpx.AsyncBaseTransport | None = None) -> Apis:
        """Return the APIs of the deployment that the settings name."""
        models = (name for name in settings.services if name.endswith("_model"))
        names = [n for n in ("trainer", "env_adapter", "reward", *models) if settings.has(n)]
        urls = {name: settings.url(name).partition("#")[0] for name in names}
        return cls(urls, transport=transport)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients.values()))

    async def readiness(self) -> dict[str, str]:
        """Return `ready` for each service, or the reason why it is not."""
        states = await asyncio.gather(*map(self._ready, self._clients))
        return dict(zip(self._clients, states, strict=True))

    async def _ready(self, name: str) -> str:
        try:
            reply = await self._clients[name].get("/readyz", timeout=_READY_S)
        except LOST as error:
            return f"no answer ({type(error).__name__})"
        return "ready" if reply.is_success else error_of(reply).detail

    async def call(
        self, method: str, api: str, path: str, key: str, **options: Any
    ) -> httpx.Response:
        """Send one request; options and errors are those of `request`, a refused key is `KeyRefusedError`."""
        try:
            return await request(self._clients[api], method, path, headers=bearer(key), **options)
        except (UnauthorizedError, ForbiddenError) as error:
            raise KeyRefusedError(error.detail) from None

    async def events(self, key: str, run_id: str, after: str) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a run until the stream ends; a browser opens it again by itself."""
        path, query = run_path(run_id, "/events"), {"after": after}
        with suppress(TriforgeError):
            async with streamed(
                self._clients["trainer"], "GET", path, params=query, headers=bearer(key)
            ) as reply:
                async for part in reply.aiter_bytes():
                    yield part


@dataclass(frozen=True, slots=True)
class Visit:
    """The requests of one visitor."""

    apis: Apis
    key: str

    async def read(self, model: type[M], api: str, path: str, **params: Any) -> M:
        """Read a path as a model; empty parameters are left out."""
        query = {name: value for name, value in params.items() if value != ""}
        return model.model_validate(
            parse_json(await self.apis.call("GET", api, path, self.key, params=query))
        )


def run_path(run_id: str, rest: str = "") -> str:
    """Return the path of a run in the trainer's API."""
    return f"/v1/runs/{segment(run_id)}{rest}"


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form that a page of this service has sent; ForbiddenError if another one did."""
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    if origin not in (f"http://{host}", f"https://{host}"):  # a browser adds its key to any request
        raise ForbiddenError(
            f"Origin: given {origin[:80]!r}, expected this page's own; forms are sent by the page"
        )
    return dict(parse_qsl((await request.body()).decode(errors="replace")))


def key_of(authorization: str) -> str:
    """Return the key of an `Authorization` header: a bearer token or a basic password, else an empty string."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def _visit(incoming: Request, authorization: Annotated[str, Header()] = "") -> Visit:
    return Visit(incoming.app.state.apis, key_of(authorization))


Visitor = Annotated[Visit, Depends(_visit)]
