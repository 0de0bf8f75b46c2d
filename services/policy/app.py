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
from triforge.access.callers import Rule
from triforge.access.keys import key_of
from triforge.errors import NotFoundError, UnauthorizedError
from triforge.web.app import install
from triforge.web.guard import Entrance, Rules, guard
from triforge.web.limits import MAX_BODY, Bounds
from triforge.web.problems import response_to

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
    """Create the app of one policy service. It starts at once; `/readyz` reports when an engine serves.

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
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_middleware(_Keys, sessions=sessions, api_key=api_key, admin_key=admin_api_key)
    guard(app, RULES, entrance)
    return app


class _Keys:
    """Middleware that asks for keys before a byte of a body is read.

    A session's own key opens its routes alone, and adds the session to the scope. Where an engine's keys are set, they open the
    other routes; the admin key alone opens the weights.
    """

    def __init__(
        self, app: ASGIApp, *, sessions: Sessions | None, api_key: str, admin_key: str
    ) -> None:
        self._app, self._rules, self._sessions = app, Rules(RULES), sessions
        self._api_key, self._admin_key = api_key, admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _, rule = self._rules.of(scope["method"], scope["path"])
            try:
                if rule.requires == "session":
                    session = await self._enter(scope)
                    scope = {**scope, "state": {**scope.get("state", {}), "session": session}}
                else:
                    self._check_key(scope, rule)
            except Exception as error:  # noqa: BLE001 - outside of the framework's own handlers
                response = await response_to(error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_key(self, scope: Scope, rule: Rule) -> None:
        needed = (rule.requires == "operator" and self._admin_key) or self._api_key
        if not needed or rule.requires == "public":
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        known = [each.encode() for each in (needed, self._admin_key) if each]
        same = [hmac.compare_digest(key.encode(), each) for each in known]
        if scheme.lower() != "bearer" or not any(same):
            raise UnauthorizedError(
                "a bearer token is needed: send the service's TRIFORGE_API_KEY as `Authorization: Bearer ...`, to change weights "
                "its TRIFORGE_ADMIN_API_KEY if it has one"
            )

    async def _enter(self, scope: Scope) -> Entered:
        if self._sessions is None:
            raise NotFoundError("this service has no sessions; that of the policy model has")
        headers, session_id = Headers(scope=scope), scope["path"].split("/")[2]
        key = key_of(headers.get("authorization", ""), headers.get("x-api-key", ""))
        return await self._sessions.enter(session_id, key, asks=scope["method"] == "POST")


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # no client reads it
