"""What all routes share: reading bodies, keys, errors in SGLang's form, and clients that hang up."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.local_engine.engine import Engine
from services.local_engine.request import Body, UnknownParameterError, explain
from triforge.errors import InputError, PolicyError, TriforgeError, UnavailableError, WeightsError

_log = logging.getLogger(__name__)
_B = TypeVar("_B", bound=Body)
_MAX_BODY = 256 * 1024 * 1024
_OPEN = ("/health", "/ready")  # probes carry no secrets
_BARE = ("/generate", "/get_weights_by_name")  # their errors have none of OpenAI's fields
_KINDS = {400: "BadRequest", 429: "TooManyRequests", 500: "InternalServerError", 503: "503"}


def engine_of(request: Request) -> Engine:
    """The engine that the app serves."""
    engine: Engine = request.app.state.engine
    return engine


async def read_json(request: Request) -> dict[str, Any]:
    """The body, which must be a JSON object; an empty body is {}."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:
            raise InputError(f"the body is larger than {_MAX_BODY} bytes")
    try:
        found = from_json(body) if body else {}
    except ValueError as error:
        raise InputError(f"the body is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"the body is a {type(found).__name__}; expected a JSON object")
    return found


async def read(request: Request, kind: type[_B]) -> _B:
    """The body as a model of pydantic; InputError where it does not fit."""
    try:
        return kind.model_validate(await read_json(request))
    except ValidationError as error:
        raise InputError(explain(error)) from error


async def unless_gone(request: Request, work: Awaitable[None]) -> None:
    """Finish `work`, or cancel it when the client hangs up."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(hang_up())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Keys:
    """ASGI middleware that asks for SGLang's two keys.

    Without keys everything is open. Control routes take the admin key where there is one, and then no other; without an
    admin key they take the API key. All other routes take the API key where there is one.
    """

    def __init__(
        self, app: ASGIApp, *, api_key: str | None, admin_key: str | None, control: frozenset[str]
    ) -> None:
        self._app, self._control = app, control
        self._api_key, self._admin_key = api_key, admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one event."""
        if scope["type"] != "http" or self._allows(scope):
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        path: str = scope["path"]
        key = (path in self._control and self._admin_key) or self._api_key
        if not key or scope["method"] == "OPTIONS" or path.startswith(_OPEN):
            return True
        scheme, _, word = Headers(scope=scope).get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(word.encode(), key.encode())


def problem(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """An error with OpenAI's fields."""
    kind = _KINDS.get(status, "Error")
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return JSONResponse(body, status, headers)


async def on_error(request: Request, error: Exception) -> Response:
    """One of our own errors, in SGLang's form: what it is asked wrongly is 400."""
    assert isinstance(error, TriforgeError)
    if isinstance(error, UnavailableError):
        retry = {"retry-after": str(int(error.retry_after_s or 1))}
        return problem(error.detail, error.status, retry)
    if isinstance(error, PolicyError):
        return problem(error.detail, 500)
    if request.url.path not in _BARE:
        if isinstance(error, WeightsError):
            refusal: dict[str, Any] = {"success": False, "message": error.detail}
            if request.url.path == "/update_weights_from_disk":
                refusal["num_paused_requests"] = 0
            return JSONResponse(refusal, 400)
        return problem(error.detail, 400)
    unknown = isinstance(error, UnknownParameterError)
    return JSONResponse({"error": error.detail if unknown else {"message": error.detail}}, 400)


async def on_http_error(_: Request, error: Exception) -> Response:
    """A path or a method that is not there."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


async def on_anything(request: Request, error: Exception) -> Response:
    """A failure of the engine itself."""
    _log.error("request to %s failed", request.url.path, exc_info=error)
    return problem(f"{type(error).__name__}: {error}", 500)


async def on_hang_up(_: Request, __: Exception) -> Response:
    """Nobody reads the answer."""
    return Response(status_code=400)
