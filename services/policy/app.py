"""The policy service as a web application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from services.policy.gateway import Gateway
from services.policy.routes import RULES, routes
from triforge.web.app import install
from triforge.web.guard import Entrance, guard
from triforge.web.limits import MAX_BODY, Bounds

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
        },
        origins=entrance.origins,
    )
    app.include_router(routes(gateway, role=role, api_key=api_key, admin_api_key=admin_api_key))
    app.add_exception_handler(ClientDisconnect, _on_hang_up)
    guard(app, RULES, entrance)
    return app


async def _on_hang_up(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it
