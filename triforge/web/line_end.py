"""JSON answers end with a newline, so that a terminal's prompt does not stand behind them."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triforge.web.problems import JSON_TYPES


class LineEnd:
    """ASGI middleware that ends a JSON answer, which comes in one part, with a newline."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        start: Message | None = None

        async def ended(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                kind = MutableHeaders(scope=message).get("content-type", "")
                if kind.partition(";")[0] in JSON_TYPES:
                    start = message  # until its length is known
                    return
            elif start is not None:
                body, headers = message.get("body", b""), MutableHeaders(scope=start)
                if body and not (message.get("more_body") or body.endswith(b"\n")):
                    message = {**message, "body": body + b"\n"}
                    headers["content-length"] = str(len(body) + 1)
                first, start = start, None
                await send(first)
            await send(message)

        await self._app(scope, receive, ended)
