"""The application around an engine, and the web server that drains the engine before it stops."""

from __future__ import annotations

import logging
import signal
import time
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect

from services.local_engine import http
from services.local_engine.engine import Engine
from services.local_engine.routes import CONTROL_PATHS, ROUTES
from services.local_engine.updates import Updates
from triforge.errors import TriforgeError
from triforge.telemetry.asgi import Watched

_log = logging.getLogger(__name__)


def create_app(
    *,
    engine: Engine,
    served_name: str,
    api_key: str | None = None,
    admin_api_key: str | None = None,
) -> Starlette:
    """The application around a started engine; `served_name` is the model's name in /v1/models."""
    app = Starlette(
        routes=ROUTES,
        middleware=[
            Middleware(Watched),
            Middleware(http.Keys, api_key=api_key, admin_key=admin_api_key, control=CONTROL_PATHS),
        ],
        exception_handlers={
            TriforgeError: http.on_error,
            HTTPException: http.on_http_error,
            ClientDisconnect: http.on_hang_up,
            Exception: http.on_anything,
        },
    )
    app.state.engine, app.state.served_name = engine, served_name
    app.state.updates = Updates(engine)
    return app


class DrainingServer(uvicorn.Server):
    """A web server that drains its engine before it stops. A second signal, or SIGINT, stops it at once.

    After SIGTERM it still answers: /ready and new requests get 503, requests that are running end as they would have.
    When none is left, or after `limit_s` seconds, it stops; what still runs then ends as aborted, with what it has.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine, limit_s: float) -> None:
        super().__init__(config)
        self._engine = engine
        self._limit_s = limit_s
        self._deadline: float | None = None

    def handle_exit(self, sig: int, _: FrameType | None) -> None:
        """Begin to drain on the first SIGTERM. The signal is not raised again afterwards: ending is no failure."""
        if sig == signal.SIGTERM and self._deadline is None:
            self._deadline = time.monotonic() + self._limit_s
            self._engine.drain()
        elif self.should_exit:
            self.force_exit = True
        else:
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: stop once the engine is drained."""
        if self._deadline is not None and not self.should_exit:
            left = self._engine.in_flight
            if left and time.monotonic() >= self._deadline:
                _log.warning("%d requests are ended after %g s of draining", left, self._limit_s)
                await self._engine.abort(None)
                left = 0
            self.should_exit = not left
        return await super().on_tick(counter)
