"""The transport of all clients: connections, retried requests, and errors out of problem documents.

Clients are written against httpx. Its transport over aiohttp stays fast at hundreds of concurrent requests, where httpx's own
does not; tests pass an in-process `httpx.ASGITransport` instead.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from pydantic import BaseModel
from pydantic_core import from_json

from triforge import __version__
from triforge.errors import (
    BusyError,
    ConfigError,
    ConflictError,
    InputError,
    NotFoundError,
    PolicyError,
    StorageError,
    TriforgeError,
    UnavailableError,
)
from triforge.retry import RetryPolicy, retry
from triforge.telemetry import tracing
from triforge.types import Page

_CONNECT_TIMEOUT_S = 5.0
# Shorter than the keep-alive of any server that we call (uvicorn closes after 5 s): a connection that the server closes just
# as it is used looks like a crash.
_KEEPALIVE_S = 4.0
_BUSY = (429, 503)
_SAFE_METHODS = ("GET", "HEAD", "PUT", "DELETE")
_JITTER = 0.5  # clients that were refused together return spread over this share of the wait
_JSON_HEADERS = {"content-type": "application/json"}
_PAGE = 1000  # rows of a list in one request

_M = TypeVar("_M", bound=BaseModel)

# httpx logs a line for each request at INFO: thousands a minute.
logging.getLogger("httpx").setLevel(logging.WARNING)


class UnreachableError(UnavailableError, retry_after_s=0.1):
    """No response: connection refused, lost or silent. The request may have arrived."""


# The exceptions of a transport without a response, or with one that breaks off.
LOST = (httpx.TransportError, aiohttp.ClientError, OSError)


def _unsent(client: httpx.AsyncClient, method: str, path: str, error: Exception) -> TriforgeError:
    if isinstance(error, httpx.InvalidURL):
        return InputError(
            f"{method} {path[:80]}: {error}; a service takes addresses of at most 64 KiB: give shorter names and options"
        )
    why = str(error).replace(" ssl:default", "")  # which aiohttp adds to any address
    return UnreachableError(
        f"{client.base_url}: no answer to {method} {path} ({type(error).__name__}: {why}); "
        "is the service up and the address right?"
    )


def bearer(key: str) -> dict[str, str]:
    """Return the header with a key; none for an empty key."""
    return {"authorization": f"Bearer {key}"} if key else {}


def http_client(
    base_url: str,
    *,
    timeout_s: float = 60.0,
    transport: httpx.AsyncBaseTransport | None = None,
    max_connections: int = 256,
    api_key: str = "",
) -> httpx.AsyncClient:
    """Return a client of one server. Make one for each process and event loop, and close it.

    `timeout_s` is the longest silence while a response is awaited, and the longest wait for one of `max_connections`;
    `transport` replaces the network; `api_key` is sent as a bearer token unless empty.
    """
    secure = base_url.startswith("https://")  # the certificate store is slow to read
    limits = httpx.Limits(max_connections=max_connections, keepalive_expiry=_KEEPALIVE_S)
    return httpx.AsyncClient(
        base_url=base_url.rstrip("/"),
        timeout=_timeout(timeout_s),
        transport=transport or AiohttpTransport(verify=secure, trust_env=False, limits=limits),
        headers={"triforge-version": __version__, **bearer(api_key)},
        trust_env=False,
    )


def _timeout(timeout_s: float) -> httpx.Timeout:
    return httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S)


async def request(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    *,
    body: BaseModel | bytes | Any = None,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    deadline_s: float = 0.0,
    busy_s: float = 0.0,
    repeatable: bool | None = None,
) -> httpx.Response:
    """Send one request and return its successful response.

    Args:
        body: a message, JSON as bytes, or a value for `json.dumps`; None sends none.
        timeout_s: longest silence while this response is awaited; None takes the client's.
        deadline_s: seconds of further tries while the server sends 429 or 503 or cannot be reached; 0 tries once.
        busy_s: seconds of further tries while it sends 429; at least `deadline_s`.
        repeatable: whether a request that may have arrived can be sent again; None decides by the method.

    Raises:
        UnreachableError: no response until the deadline.
        BusyError: the server has too much work until the deadline.
        UnavailableError: the server is not ready until the deadline.
        TriforgeError: the class that the server's problem document names.
    """
    again = method in _SAFE_METHODS if repeatable is None else repeatable
    content = body if body is None or isinstance(body, bytes) else _json(body)

    async def once() -> httpx.Response:
        try:
            response = await client.request(
                method,
                path,
                content=content,
                params={k: v for k, v in (params or {}).items() if v is not None} or None,
                timeout=client.timeout if timeout_s is None else _timeout(timeout_s),
                headers=_headers(headers),
            )
        except (*LOST, httpx.InvalidURL) as error:
            raise _unsent(client, method, path, error) from error
        if response.is_success:
            return response
        raise error_of(response)

    def retried(error: Exception) -> bool:
        return isinstance(error, UnavailableError) and (
            again or not isinstance(error, UnreachableError)
        )

    policy = RetryPolicy(deadline_s=deadline_s, busy_s=busy_s, jitter=_JITTER, retry_on=retried)
    return await retry(once, policy)


def _json(body: Any) -> str:
    return body.model_dump_json() if isinstance(body, BaseModel) else json.dumps(body)


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    # Without a media type aiohttp invents one, also for an empty body, and services refuse it.
    return _JSON_HEADERS | tracing.headers() | dict(headers or {})


@asynccontextmanager
async def streamed(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    *,
    body: bytes | AsyncIterable[bytes] | None = None,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> AsyncIterator[httpx.Response]:
    """Yield a successful response whose body is read in parts. Tried once. Errors: see `request`."""
    try:
        async with client.stream(
            method,
            path,
            content=body,
            params=params,
            headers=_headers(headers),
            timeout=client.timeout if timeout is None else _timeout(timeout),
        ) as response:
            if not response.is_success:
                await response.aread()
                raise error_of(response)
            yield response
    except (*LOST, httpx.InvalidURL) as error:
        raise _unsent(client, method, path, error) from error


class ServiceClient:
    """Base of the typed clients. Make one for each process and event loop; use it as a context manager, or close it."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float,
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = http_client(
            base_url, timeout_s=timeout_s, transport=transport, api_key=api_key
        )

    @property
    def base_url(self) -> str:
        """Address of the service."""
        return str(self._http.base_url).rstrip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _ask(self, kind: type[_M], method: str, path: str, **options: Any) -> _M:
        """Send a request and parse the response. Options and errors: see `request`."""
        return kind.model_validate(parse_json(await request(self._http, method, path, **options)))

    async def _get(self, kind: type[_M], path: str, **options: Any) -> _M:
        return await self._ask(kind, "GET", path, **options)

    async def _post(self, kind: type[_M], path: str, body: Any = None, **options: Any) -> _M:
        return await self._ask(kind, "POST", path, body=body, **options)

    async def _list(
        self,
        kind: type[_M],
        path: str,
        params: Mapping[str, str | None] | None = None,
        *,
        most: int | None = None,
        pages: Any = Page[Any],
    ) -> AsyncIterator[_M]:
        """Yield the rows of a list, or the first `most`, page after page."""
        cursor, left = None, math.inf if most is None else most
        while left > 0:
            query = {**(params or {}), "cursor": cursor, "limit": int(min(_PAGE, left))}
            page = pages.model_validate(await get_json(self._http, path, params=query))
            for row in page.items:
                yield kind.model_validate(row)
            left, cursor = left - len(page.items), page.next_cursor
            if cursor is None:
                return

    async def _parts(self, path: str, **params: str) -> AsyncIterator[bytes]:
        """Yield the body of a response in parts of any size."""
        async with streamed(self._http, "GET", path, params=params, timeout=600.0) as response:
            async for part in response.aiter_bytes():
                yield part


async def save(parts: AsyncIterator[bytes], path: Path) -> None:
    """Write parts to a file, whole or not at all.

    Raises:
        StorageError: it cannot be written.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        with aside.open("wb") as file:
            async for part in parts:
                file.write(part)
        aside.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        aside.unlink(missing_ok=True)


def segment(name: str) -> str:
    """Return a name as one segment of a path, with slashes, dots and control characters escaped."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


async def get_json(client: httpx.AsyncClient, path: str, **options: Any) -> Any:
    """GET and parse the response. Options and errors: see `request`."""
    return parse_json(await request(client, "GET", path, **options))


async def post_json(client: httpx.AsyncClient, path: str, body: Any = None, **options: Any) -> Any:
    """POST and parse the response. Options and errors: see `request`."""
    return parse_json(await request(client, "POST", path, body=body, **options))


def parse_json(response: httpx.Response) -> Any:
    """Return the JSON of a response."""
    try:
        return from_json(response.content)
    except ValueError:
        text = response.content[:120].decode(errors="replace")
        raise PolicyError(
            f"{response.url}: expected JSON, got {text!r}; is the address right?"
        ) from None


def error_of(response: httpx.Response) -> TriforgeError:
    """Return the error of an unsuccessful response: by its problem document's kind, else by its status."""
    try:
        document = json.loads(response.content)
    except ValueError:
        document = {}
    document = document if isinstance(document, dict) else {}
    kind = str(document.get("type", "")).removeprefix("urn:triforge:")
    cls = _kinds().get(kind) or _class_of(response.status_code)
    problems = document.get("problems")
    return cls(
        _detail(response, document),
        retry_after_s=_retry_after(response),
        problems=tuple(map(str, problems)) if isinstance(problems, list) else (),
    )


def _detail(response: httpx.Response, document: dict[str, Any]) -> str:
    for name in ("detail", "error", "message", "error_message"):
        value = document.get(name)
        if isinstance(value, dict):
            value = value.get("message")
        if isinstance(value, str) and value:
            return value
    body = " ".join(response.text[:200].split())
    request = response.request
    return f"{request.method} {request.url}: status {response.status_code} {body}".rstrip()


def _class_of(status: int) -> type[TriforgeError]:
    known: dict[int, type[TriforgeError]] = {
        401: ConfigError,
        403: ConfigError,
        404: NotFoundError,
        409: ConflictError,
        429: BusyError,
        502: PolicyError,
        503: UnavailableError,
    }
    return known.get(status, TriforgeError if status >= 500 else InputError)


def _kinds(base: type[TriforgeError] = TriforgeError) -> dict[str, type[TriforgeError]]:
    kinds = {base.kind: base}
    for cls in base.__subclasses__():
        kinds = _kinds(cls) | kinds
    return kinds


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of the Retry-After header; 1 for a busy server without one, else None."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and seconds >= 0:
        return seconds
    return 1.0 if response.status_code in _BUSY else None
