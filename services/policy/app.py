"""The policy service as a web application, and the web server that ends it in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from services.policy.gateway import Gateway
from services.policy.openai import ReadableErrors
from services.policy.routes import RULES, routes
from triforge.web.app import install
from triforge.web.guard import Entrance, guard
from triforge.web.limits import MAX_BODY

_log = logging.getLogger(__name__)


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
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            await gateway.pool.close()

    entrance = entrance or Entrance()
    if entrance.gate.asks:
        api_key = admin_api_key = ""
    app = FastAPI(title=f"triforge policy ({role})", lifespan=lifespan)
    install(app, ready=gateway.ready, registry=gateway.metrics.registry, max_body=max_body)
    app.include_router(routes(gateway, role=role, api_key=api_key, admin_api_key=admin_api_key))
    guard(app, RULES, entrance)
    app.add_middleware(ReadableErrors)
    return app


class DrainingServer(uvicorn.Server):
    """At the first signal the service takes nothing new and says so; it ends when what runs has ended, or its time is up.

    Meanwhile the listener stays open: new requests get 503 with Retry-After, and `/readyz` says 503, so that whoever spreads
    requests over services looks elsewhere. A second signal ends it at once.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway, *, drain_s: float) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._drain_s = drain_s
        self._signalled = False
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come."""
        if self._signalled:
            super().handle_exit(sig, frame)
        self._signalled = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._signalled and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        _log.info("told to end; waiting up to %g s for what runs", self._drain_s)
        await self._gateway.drain(self._drain_s)
        self.should_exit = True
