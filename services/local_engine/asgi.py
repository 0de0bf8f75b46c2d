"""HTTP without a framework: one request, its body, and the ways to answer it.

It is plain ASGI: with a small model one decode step takes a few hundred microseconds, and the layers of a web framework
would take as long for every request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from triforge.errors import InputError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]

_MAX_BODY = 256 * 1024 * 1024
_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")


class GoneError(Exception):
    """The client hung up before its answer was ready."""


class Exchange:
    """One HTTP request and its answer.

    Args:
        scope: of the connection.
        receive: gives the next event.
        send: takes the next event.
    """

    __slots__ = ("_receive", "_send", "method", "path", "started")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.started = False
        self._receive, self._send = receive, send

    async def json(self) -> Any:
        """The JSON body; an empty body is {}.

        Raises:
            InputError: it is not JSON, or too large.
            GoneError: the client hung up.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            part = message.get("body", b"")
            size += len(part)
            if size > _MAX_BODY:
                raise InputError(f"the body is larger than {_MAX_BODY} bytes")
            parts.append(part)
            if not message.get("more_body"):
                break
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            return json.loads(body) if body else {}
        except (
            ValueError,
            RecursionError,
        ) as error:  # the second of a body that is nested too deeply
            raise InputError(f"the body is not valid JSON: {error}") from error

    async def object(self) -> dict[str, Any]:
        """The JSON body, which must be an object.

        Raises:
            InputError: it is something else.
            GoneError: the client hung up.
        """
        body = await self.json()
        if not isinstance(body, dict):
            raise InputError(f"the body is a {type(body).__name__}; expected a JSON object")
        return body

    async def answer(self, status: int, body: Any, headers: Headers = ()) -> None:
        """Answer with JSON."""
        await self._whole(status, json.dumps(body).encode(), (_JSON, *headers))

    async def text(self, status: int, text: str) -> None:
        """Answer with plain text."""
        await self._whole(status, text.encode(), (_TEXT,))

    async def empty(self, status: int) -> None:
        """Answer with a status alone."""
        await self._whole(status, b"", ())

    async def _whole(self, status: int, body: bytes, headers: Headers) -> None:
        self.started = True
        length = (b"content-length", str(len(body)).encode())
        start = {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, length],
        }
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})

    async def start_events(self) -> None:
        """Begin a stream of server-sent events."""
        self.started = True
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, data: Any) -> None:
        """Send one event."""
        body = b"data: " + json.dumps(data).encode() + b"\n\n"
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end_events(self) -> None:
        """End the stream as OpenAI's and SGLang's do."""
        await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def unless_gone(self, work: Awaitable[None]) -> None:
        """Finish `work`, or cancel it when the client hangs up.

        Raises:
            GoneError: the client hung up.
        """
        task = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(self._hung_up())
        try:
            await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise GoneError
            task.result()
        finally:
            for each in (task, watcher):
                if not each.done():
                    each.cancel()
            await asyncio.gather(task, watcher, return_exceptions=True)

    async def _hung_up(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
