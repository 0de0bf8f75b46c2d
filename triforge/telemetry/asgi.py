"""ASGI middleware that takes the ids and the trace of a request."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from triforge.telemetry import tracing
from triforge.telemetry.ids import HEADER, about, receive_ids

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BAGGAGE: Final = HEADER.encode()
_PARENT: Final = tracing.PARENT.encode()
_NAMED: Final = re.compile(r"^/v1/(run|pool|task)s/([^/]+)")
# Machines ask for these several times a minute.
_UNTRACED: Final = ("/healthz", "/readyz", "/metrics", "/ready", "/health", "/model_info")


class Watched:
    """Middleware in front of an app: its log lines have the ids of the request, and each request is a span."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one event."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = dict(scope["headers"]), scope["path"]
        receive_ids(headers.get(_BAGGAGE, b""))
        named = _NAMED.match(path)
        with about(**({named[1]: named[2]} if named else {})):
            if not tracing.is_on() or path in _UNTRACED:
                await self._app(scope, receive, send)
                return
            shape = _NAMED.sub(r"/v1/\1s/{\1}", path)  # few names for all requests
            name = f"{scope['method']} {shape}"
            parent = headers.get(_PARENT, b"").decode("latin-1")
            with tracing.served(name, parent, **{"http.request.method": scope["method"]}):
                await self._app(scope, receive, send)


def unnamed(scope: Scope) -> Scope:
    """Return the request without the headers of ids and traces, which clients outside of the deployment must not set."""
    kept = [pair for pair in scope["headers"] if pair[0] not in (_BAGGAGE, _PARENT)]
    return scope if len(kept) == len(scope["headers"]) else {**scope, "headers": kept}
