"""The policy service as a web application."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from services.policy.gateway import Gateway
from services.policy.routes import RULES, routes
from triforge.errors import UnauthorizedError
from triforge.web.app import install
from triforge.web.guard import PUBLIC, Entrance, Rules, guard
from triforge.web.limits import MAX_BODY, Bounds
from triforge.web.problems import of_error

_TOKENS = 4_000_000  # ids in the prompts of a request; 64 of 32,000 are 2 millions


def create_app(
    *,
    gateway: Gateway,
    role: str,
    api_key: str = "",
    admin_api_key: str = "",
    max_body: int = MAX_BODY,
    entrance: Entrance | None = None,
) -> FastAPI:
    """The app of one policy service. It starts at once; `/readyz` says when an engine serves.

    Where `entrance` asks for keys, the two keys of engines open nothing here.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(gateway.weights.watch())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await gateway.pool.close()

    entrance = entrance or Entrance()
    if entrance.gate.asks:
        api_key = admin_api_key = ""
    app = FastAPI(title=f"triforge policy ({role})", lifespan=lifespan)
    install(
        app,
        ready=gateway.ready,
        registry=gateway.metrics.registry,
        bodies={
            "POST /v1/generate": Bounds(max_body, numbers=_TOKENS),
            "POST /v1/chat/completions": Bounds(max_body),
            "POST /v1/completions": Bounds(max_body, numbers=_TOKENS),
        },
        origins=entrance.origins,
    )
    app.include_router(routes(gateway, role=role))
    app.add_exception_handler(ClientDisconnect, _on_hang_up)
    app.add_middleware(_EngineKeys, api_key=api_key, admin_key=admin_api_key)
    guard(app, RULES, entrance)
    return app


class _EngineKeys:
    """The engines' keys open the service, too, before a byte of a body is read: the admin key all of it, and weights alone."""

    def __init__(self, app: ASGIApp, *, api_key: str, admin_key: str) -> None:
        self._app, self._rules = app, Rules(RULES)
        self._api_key, self._admin_key = api_key, admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._opens(scope):
            await self._app(scope, receive, send)
            return
        error = UnauthorizedError(
            "a bearer token is needed: send the service's TRIFORGE_API_KEY as `Authorization: Bearer ...`, to change weights "
            "its TRIFORGE_ADMIN_API_KEY if it has one"
        )
        await of_error(error)(scope, receive, send)

    def _opens(self, scope: Scope) -> bool:
        _, rule = self._rules.of(scope["method"], scope["path"])
        needed = (rule.changes and self._admin_key) or self._api_key
        if not needed or rule == PUBLIC:
            return True
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        keys = [key.encode() for key in (needed, self._admin_key) if key]
        found = [hmac.compare_digest(given.encode(), key) for key in keys]
        return scheme.lower() == "bearer" and any(found)


async def _on_hang_up(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it
