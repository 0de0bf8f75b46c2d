"""The policy service as a web application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from services.policy.access import RULES
from services.policy.gateway import Gateway
from services.policy.native_api import NativeApi
from services.policy.openai_errors import PATHS, Readable
from services.policy.routes import routes
from triforge.web.furniture import install
from triforge.web.guard import Entrance, guard
from triforge.web.limits import MAX_BODY

_log = logging.getLogger(__name__)


class PolicyApp(FastAPI):
    """The framework's application behind the native API."""

    api: NativeApi

    async def framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything that is not the native api's."""
        if scope["type"] == "http" and scope["path"] in PATHS:
            send = Readable(send)
        await super().__call__(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one event of ASGI."""
        await self.api(scope, receive, send)


def create_app(
    *,
    gateway: Gateway,
    role: str,
    api_key: str = "",
    admin_api_key: str = "",
    max_body: int = MAX_BODY,
    entrance: Entrance | None = None,
) -> PolicyApp:
    """The app of one policy service. It starts at once; `/readyz` says when an engine serves.

    Args:
        gateway: what answers.
        role: the model role.
        api_key: bearer token that callers must send; empty asks for none. Not looked at where `entrance` asks for keys.
        admin_api_key: bearer token of `POST /v1/weights`; empty takes `api_key`.
        max_body: bytes of a request's body; a larger one is a 413.
        entrance: who is let in; None lets in everybody.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(gateway.fence.watch())
        try:
            yield
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            await gateway.pool.close()

    entrance = entrance or Entrance()
    if entrance.gate.asks:
        api_key = admin_api_key = ""
    app = PolicyApp(title=f"triforge policy ({role})", lifespan=lifespan)
    install(app, ready=gateway.ready, registry=gateway.registry, max_body=max_body)
    app.include_router(routes(gateway, role=role, api_key=api_key, admin_api_key=admin_api_key))
    guard(app, RULES, entrance)
    app.api = NativeApi(
        app.framework, gateway, gate=entrance.gate, api_key=api_key, max_body=max_body
    )
    return app
