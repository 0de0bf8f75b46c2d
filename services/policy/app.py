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

from services.policy.api.routes import RULES, routes
from services.policy.api.sessions import Entered, Sessions
from services.policy.gateway import Gateway
from triforge.access.keys import key_of
from triforge.errors import NotFoundError, UnauthorizedError
from triforge.web.app import install
from triforge.web.guard import Entrance, Rules, guard
from triforge.web.limits import MAX_BODY, Bounds
from triforge.web.problems import problem_of, response_to

_TOKENS = 4_000_000  # ids in the prompts of a request; 64 of 32,000 are 2 millions


def create_app(
    *,
    gateway: Gateway,
    role: str,
    api_key: str = "",
    admin_api_key: str = "",
    max_body: int = MAX_BODY,
    entrance: Entrance | None = None,
    sessions: Sessions | None = None,
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
    if entrance.gate.keyed:
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
            **{route: Bounds(max_body) for route in RULES if route.startswith("POST /sessions")},
        },
        origins=entrance.origins,
    )
    app.include_router(routes(gateway, role=role, sessions=sessions))
    app.add_exception_handler(ClientDisconnect, _on_hang_up)
    app.add_middleware(_SessionKeys, sessions=sessions)
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
        await problem_of(error)(scope, receive, send)

    def _opens(self, scope: Scope) -> bool:
        _, rule = self._rules.of(scope["method"], scope["path"])
        needed = (rule.requires == "operator" and self._admin_key) or self._api_key
        if not needed or rule.requires in ("public", "session"):
            return True
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        keys = [key.encode() for key in (needed, self._admin_key) if key]
        found = [hmac.compare_digest(given.encode(), key) for key in keys]
        return scheme.lower() == "bearer" and any(found)


class _SessionKeys:
    """Lets a session's own key alone open its routes, before a byte of a body is read, and says which session it is."""

    def __init__(self, app: ASGIApp, *, sessions: Sessions | None) -> None:
        self._app, self._rules, self._sessions = app, Rules(RULES), sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _, rule = self._rules.of(scope["method"], scope["path"])
            if rule.requires == "session":
                try:
                    session = await self._entered(scope)
                except Exception as error:  # noqa: BLE001 - outside of the framework's own handlers
                    response = await response_to(error)
                    await response(scope, receive, send)
                    return
                scope = {**scope, "state": {**scope.get("state", {}), "session": session}}
        await self._app(scope, receive, send)

    async def _entered(self, scope: Scope) -> Entered:
        if self._sessions is None:
            raise NotFoundError("this service has no sessions; that of the policy model has")
        headers, session_id = Headers(scope=scope), scope["path"].split("/")[2]
        key = key_of(headers.get("authorization", ""), headers.get("x-api-key", ""))
        return await self._sessions.enter(session_id, key, asks=scope["method"] == "POST")


async def _on_hang_up(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it
