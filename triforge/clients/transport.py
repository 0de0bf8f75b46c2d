"""The seam between clients and the network, and the way back from a problem document to an error.

Clients are written against httpx's interface. Real traffic runs over aiohttp, whose pool stays fast at hundreds of
concurrent requests where httpx's own does not; tests pass an in-process `httpx.ASGITransport` instead.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from pydantic import BaseModel

from triforge import __version__
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
from triforge.telemetry import tracing

CONNECT_TIMEOUT_S = 5.0
# Shorter than the keep-alive of any server we talk to (uvicorn closes after 5 s): a connection that the server closes
# just as we use it looks like a crash.
KEEPALIVE_S = 4.0

_T = TypeVar("_T")

_BUSY = (429, 503)
_SAFE_METHODS = ("GET", "HEAD", "PUT", "DELETE")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_JITTER = 0.5  # who was turned away together comes back spread over this share of the wait
JSON_HEADERS = {"content-type": "application/json"}

# httpx logs a line a request at INFO: thousands a minute, and a good part of their time.
logging.getLogger("httpx").setLevel(logging.WARNING)


class UnreachableError(UnavailableError):
    """Nothing answered: connection refused, lost or silent. The request may or may not have arrived."""


# What a transport raises when there is no answer, or when it breaks off.
LOST = (httpx.TransportError, aiohttp.ClientError, OSError)


def unreachable(
    client: httpx.AsyncClient, method: str, path: str, error: Exception
) -> UnreachableError:
    """One of `LOST` as an error of ours."""
    return UnreachableError(
        f"{client.base_url}: no answer to {method} {path} ({type(error).__name__}: {error}); "
        "is the service up and the address right?"
    )


def http_client(
    base_url: str,
    *,
    timeout_s: float = 60.0,
    transport: httpx.AsyncBaseTransport | None = None,
    max_connections: int = 256,
    headers: Mapping[str, str] | None = None,
    api_key: str = "",
) -> httpx.AsyncClient:
    """A client of one server. Make one a process and event loop, and close it.

    Args:
        base_url: scheme, host and port; a path is kept as a prefix.
        timeout_s: longest silence while an answer is awaited, and longest wait for a free connection.
        transport: what carries the requests; None is the network.
        max_connections: most connections at a time; further requests wait.
        headers: sent with every request.
        api_key: sent as a bearer token unless empty.
    """
    sent = {"triforge-version": __version__, **(headers or {})}
    if api_key:
        sent["authorization"] = f"Bearer {api_key}"
    if transport is None:
        transport = _network(base_url, max_connections)
    return httpx.AsyncClient(
        base_url=base_url.rstrip("/"),
        timeout=_timeout(timeout_s),
        transport=transport,
        headers=sent,
        trust_env=False,
    )


def _timeout(timeout_s: float) -> httpx.Timeout:
    return httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)


def _network(base_url: str, max_connections: int) -> AiohttpTransport:
    limits = httpx.Limits(max_connections=max_connections, keepalive_expiry=KEEPALIVE_S)
    secure = base_url.startswith(
        "https://"
    )  # the certificate store is slow to read; http needs none

    session = functools.partial(session_of, secure, max_connections)
    return AiohttpTransport(verify=secure, limits=limits, client=session)


def session_of(secure: bool, max_connections: int) -> aiohttp.ClientSession:
    """Connections to one server; made inside the event loop that uses them."""
    connector = aiohttp.TCPConnector(
        limit=max_connections, keepalive_timeout=KEEPALIVE_S, ssl=secure
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("user-agent", "accept", "accept-encoding"),
    )


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
    """Send one request and return its successful answer.

    While `deadline_s` lasts, a server that says 429 or 503 is asked again after its Retry-After and a little, drawn at
    random, and so is one that cannot be reached if the request may be repeated.

    Args:
        client: from `http_client`.
        method: HTTP method.
        path: below the client's base URL.
        body: a message, JSON as bytes, or anything json can write; None sends none.
        params: query parameters; None values are left out.
        headers: sent with this request beside the client's own.
        timeout_s: longest silence while this answer is awaited; None takes the client's.
        deadline_s: seconds to go on trying; 0 tries once.
        busy_s: seconds to go on while the server says 429: it lives and will come to it; at least `deadline_s`.
        repeatable: whether a request that may have arrived can be sent again; None asks the method.

    Raises:
        UnreachableError: nothing answers until the deadline.
        BusyError: the server has too much to do until the deadline.
        UnavailableError: the server is not ready until the deadline.
        TriforgeError: the class that the server's problem document names.
    """
    timeout = client.timeout if timeout_s is None else _timeout(timeout_s)
    return await persist(
        lambda: _once(
            client, method, path, body=body, params=params, headers=headers, timeout=timeout
        ),
        deadline_s=deadline_s,
        busy_s=busy_s,
        repeatable=method in _SAFE_METHODS if repeatable is None else repeatable,
    )


async def persist(
    call: Callable[[], Awaitable[_T]], *, deadline_s: float, busy_s: float, repeatable: bool
) -> _T:
    """Make a call again while the server is away or has too much to do. Arguments and errors: see `request`."""
    start = time.monotonic()
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except UnavailableError as error:
            lost = isinstance(error, UnreachableError)
            wait = pause if lost else max(pause, error.retry_after_s or 0.0)
            wait *= 1.0 + _JITTER * random.random()  # noqa: S311 - no secret
            patience = max(deadline_s, busy_s) if isinstance(error, BusyError) else deadline_s
            if (lost and not repeatable) or time.monotonic() + wait > start + patience:
                raise
        await asyncio.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


async def _once(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    *,
    body: BaseModel | bytes | Any,
    params: Mapping[str, Any] | None,
    headers: Mapping[str, str] | None,
    timeout: httpx.Timeout,
) -> httpx.Response:
    content: bytes | str | None
    if body is None or isinstance(body, bytes):
        content = body
    elif isinstance(body, BaseModel):
        content = body.model_dump_json()
    else:
        content = json.dumps(body)
    query = {key: value for key, value in (params or {}).items() if value is not None}
    try:
        response = await client.request(
            method,
            path,
            content=content,
            params=query or None,
            timeout=timeout,
            headers=(JSON_HEADERS if content is not None else {})
            | tracing.headers()
            | dict(headers or {}),
        )
    except LOST as error:
        raise unreachable(client, method, path, error) from error
    if response.is_success:
        return response
    raise error_of(response)


def segment(name: str) -> str:
    """A name as one segment of a path, whatever stands in it: slashes, dots and control characters name nothing else."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


async def get_json(
    client: httpx.AsyncClient,
    path: str,
    *,
    params: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    deadline_s: float = 0.0,
) -> Any:
    """GET and parse the answer. Errors: see `request`."""
    response = await request(
        client, "GET", path, params=params, timeout_s=timeout_s, deadline_s=deadline_s
    )
    return parse_json(response)


async def post_json(
    client: httpx.AsyncClient,
    path: str,
    body: BaseModel | bytes | Any = None,
    *,
    timeout_s: float | None = None,
    deadline_s: float = 0.0,
    repeatable: bool = False,
) -> Any:
    """POST and parse the answer. Errors: see `request`."""
    response = await request(
        client,
        "POST",
        path,
        body=body,
        timeout_s=timeout_s,
        deadline_s=deadline_s,
        repeatable=repeatable,
    )
    return parse_json(response)


def parse_json(response: httpx.Response) -> Any:
    """The JSON of an answer.

    Raises:
        PolicyError: the answer is not JSON; something else listens at that address.
    """
    try:
        return json.loads(response.content)
    except ValueError:
        raise no_json(str(response.url), response.content) from None


def no_json(url: str, content: bytes) -> PolicyError:
    """The error for an answer that is not JSON."""
    text = content[:120].decode(errors="replace")
    return PolicyError(f"{url}: expected JSON, got {text!r}; is the address right?")


def error_of(response: httpx.Response) -> TriforgeError:
    """The error that an unsuccessful answer stands for: its problem document's kind, else its status."""
    try:
        document = json.loads(response.content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {}
    kind = str(document.get("type", "")).removeprefix("urn:triforge:")
    detail = _detail(response, document)
    cls = _kinds().get(kind) or _class_of(response.status_code)
    problems = document.get("problems")
    return cls(
        detail,
        retry_after_s=_retry_after(response),
        problems=tuple(map(str, problems)) if isinstance(problems, list) else (),
    )


def _detail(response: httpx.Response, document: dict[str, Any]) -> str:
    for name in ("detail", "error", "message", "error_message"):
        found = document.get(name)
        if isinstance(found, dict):
            found = found.get("message")
        if isinstance(found, str) and found:
            return found
    body = " ".join(response.text[:200].split())
    request = response.request
    return f"{request.method} {request.url}: status {response.status_code} {body}".rstrip()


def _class_of(status: int) -> type[TriforgeError]:
    if status in (401, 403):
        return ConfigError
    if status in _BUSY:
        return BusyError if status == 429 else UnavailableError
    if status >= 500:
        return PolicyError if status == 502 else TriforgeError
    return {404: NotFoundError, 409: ConflictError}.get(status, InputError)


def _kinds(base: type[TriforgeError] = TriforgeError) -> dict[str, type[TriforgeError]]:
    found = {base.kind: base}
    for cls in base.__subclasses__():
        found |= {kind: sub for kind, sub in _kinds(cls).items() if kind not in found}
    return found


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds of the Retry-After header; a busy server without one gets a second; None for all others."""
    text = response.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and seconds >= 0:
        return seconds
    return 1.0 if response.status_code in _BUSY else None
