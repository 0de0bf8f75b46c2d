"""The application around an engine: its routes, SGLang's two keys, and errors in SGLang's form."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from services.local_engine.engine import Engine
from services.local_engine.request import UnknownParameterError
from services.local_engine.routes import CONTROL, Routes
from triforge.errors import PolicyError, TriforgeError, UnavailableError, WeightsError
from triforge.telemetry.asgi import Watched
from triforge.web.origins import OriginGuard, OriginPolicy

_log = logging.getLogger(__name__)
_OPEN = ("/health", "/ready")  # probes carry no secrets
_BARE = ("/generate", "/get_weights_by_name")  # their errors have none of OpenAI's fields
_KINDS = {400: "BadRequest", 500: "InternalServerError", 503: "503"}


def create_app(
    *,
    engine: Engine,
    served_name: str,
    host: str = "127.0.0.1",
    api_key: str | None = None,
    admin_api_key: str | None = None,
) -> Starlette:
    """Create the application of a started engine; `served_name` is the model's name in /v1/models, `host` its own."""
    routes = Routes(engine, served_name).all()
    app = guarded(routes, host=host, api_key=api_key, admin_api_key=admin_api_key)
    app.state.engine = engine
    return app


def guarded(
    routes: Sequence[BaseRoute],
    *,
    host: str,
    api_key: str | None = None,
    admin_api_key: str | None = None,
) -> Starlette:
    """Create an application of routes behind the keys, with errors in SGLang's form."""
    hosts = None if api_key else frozenset({host})
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(Watched),
            Middleware(OriginGuard, policy=OriginPolicy(hosts=hosts, navigation=False)),
            Middleware(_Keys, api_key=api_key, admin_key=admin_api_key),
        ],
        exception_handlers={
            TriforgeError: _on_error,
            HTTPException: _on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: _on_unexpected,
        },
    )


class _Keys:
    """Control routes take the admin key where there is one, and then no other; all other routes take the API key."""

    def __init__(self, app: ASGIApp, *, api_key: str | None, admin_key: str | None) -> None:
        self._app, self._api_key, self._admin_key = app, api_key, admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._allows(scope):
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        path: str = scope["path"]
        key = (path[1:] in CONTROL and self._admin_key) or self._api_key
        if not key or scope["method"] == "OPTIONS" or path.startswith(_OPEN):
            return True
        scheme, _, word = Headers(scope=scope).get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(word.encode(), key.encode())


def _problem(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    kind = _KINDS.get(status, "Error")
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return JSONResponse(body, status, headers)


async def _on_error(request: Request, error: Exception) -> Response:
    """Answer one of our own errors; a wrong request is 400."""
    assert isinstance(error, TriforgeError)
    if isinstance(error, UnavailableError):
        retry = {"retry-after": str(int(error.retry_after_s or 1))}
        return _problem(error.detail, error.status, retry)
    if isinstance(error, PolicyError):
        return _problem(error.detail, 500)
    if request.url.path in _BARE:
        unknown = isinstance(error, UnknownParameterError)
        return JSONResponse({"error": error.detail if unknown else {"message": error.detail}}, 400)
    if not isinstance(error, WeightsError):
        return _problem(error.detail, 400)
    refusal: dict[str, Any] = {"success": False, "message": error.detail}
    if request.url.path == "/update_weights_from_disk":
        refusal["num_paused_requests"] = 0
    return JSONResponse(refusal, 400)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # no client reads it


async def _on_unexpected(request: Request, error: Exception) -> Response:
    _log.error("request to %s failed", request.url.path, exc_info=error)
    return _problem(f"{type(error).__name__}: {error}", 500)
