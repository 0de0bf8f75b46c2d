"""The way that every token takes: POST without what httpx does for each request, and answers line by line."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import httpx
import yarl
from pydantic_core import from_json

from triforge.clients.transport import (
    CONNECT_TIMEOUT_S,
    JSON_HEADERS,
    LOST,
    error_of,
    http_client,
    no_json,
    request,
    session_of,
    unreachable,
)
from triforge.telemetry import tracing

_OK = 200


async def stream_lines(
    client: httpx.AsyncClient, path: str, body: bytes
) -> AsyncGenerator[str, None]:
    """POST and give the lines of the answer as they come. Tried once. Errors: see `request`."""
    try:
        headers = JSON_HEADERS | tracing.headers()
        async with client.stream("POST", path, content=body, headers=headers) as response:
            if not response.is_success:
                await response.aread()
                raise error_of(response)
            async for line in response.aiter_lines():
                yield line
    except LOST as error:
        raise unreachable(client, "POST", path, error) from error


class JsonPost:
    """POST of ready JSON to one path, for the way that every token takes: without what httpx does for each request.

    Tried once. Make one a process and event loop, and close it. Arguments: see `http_client`.
    """

    def __init__(
        self,
        base_url: str,
        path: str,
        *,
        timeout_s: float,
        transport: httpx.AsyncBaseTransport | None = None,
        max_connections: int = 256,
        api_key: str = "",
    ) -> None:
        self.client = http_client(
            base_url,
            timeout_s=timeout_s,
            transport=transport,
            max_connections=max_connections,
            api_key=api_key,
        )
        self._path = path
        self._url = yarl.URL(f"{base_url.rstrip('/')}{path}")
        self._own = transport is None
        self._connect = functools.partial(
            session_of, base_url.startswith("https://"), max_connections
        )
        self._headers = {
            **JSON_HEADERS,
            **({"authorization": f"Bearer {api_key}"} if api_key else {}),
        }
        self._timeout = aiohttp.ClientTimeout(
            sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s, connect=timeout_s
        )
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        await self.client.aclose()
        if self._session is not None:
            await self._session.close()

    async def __call__(self, body: bytes) -> Any:
        """Send it and parse the answer. Errors: see `request`."""
        content = await self.raw(body)
        try:
            return from_json(content)
        except ValueError:
            raise no_json(str(self._url), content) from None

    async def raw(self, body: bytes) -> bytes:
        """Send it; the answer as it came. Errors: see `request`."""
        if not self._own:
            return (await request(self.client, "POST", self._path, body=body)).content
        if self._session is None:
            self._session = self._connect()
        along = tracing.headers()
        headers = self._headers | along if along else self._headers
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, timeout=self._timeout
            ) as answer:
                content = await answer.read()
        except LOST as error:
            raise unreachable(self.client, "POST", self._path, error) from error
        if answer.status == _OK:
            return content
        raise error_of(
            httpx.Response(
                answer.status,
                headers=list(answer.raw_headers),
                content=content,
                request=httpx.Request("POST", str(self._url)),
            )
        )
