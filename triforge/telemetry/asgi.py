"""Any service's API, watched: whom a request is about, and its span. Plain ASGI; knows no framework."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from triforge.telemetry import tracing
from triforge.telemetry.ids import HEADER, about, came_with

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BAGGAGE: Final = HEADER.encode()
_PARENT: Final = tracing.PARENT.encode()
_NAMED: Final = re.compile(r"^/v1/(run|pool|task)s/([^/]+)")
# Asked several times a minute by machines: no traces of them.
_UNWATCHED: Final = ("/healthz", "/readyz", "/metrics", "/ready", "/health", "/model_info")


class Watched:
    """ASGI middleware in front of an app."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one event."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        above = take_headers(scope["headers"])
        named = _NAMED.match(scope["path"])
        ids = {named[1]: named[2]} if named else {}
        with about(**ids):
            if not tracing.is_on() or scope["path"] in _UNWATCHED:
                await self._app(scope, receive, send)
                return
            name = f"{scope['method']} {_shape(scope['path'])}"
            with tracing.served(name, above, **{"http.request.method": scope["method"]}):
                await self._app(scope, receive, send)


def take_headers(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Note whom the request is about; returns its `traceparent`, or the empty string."""
    above = b""
    for name, value in headers:
        if name == _BAGGAGE:
            came_with(value)
        elif name == _PARENT:
            above = value
    return above.decode("latin-1")


def unnamed(scope: Scope) -> Scope:
    """The request without what it says whom it is about: a stranger's word must not stand in logs and traces as ours."""
    kept = [pair for pair in scope["headers"] if pair[0] not in (_BAGGAGE, _PARENT)]
    return scope if len(kept) == len(scope["headers"]) else {**scope, "headers": kept}


def _shape(path: str) -> str:
    """The path with ids left out, so that few names stand for all requests."""
    return _NAMED.sub(r"/v1/\1s/{\1}", path)
