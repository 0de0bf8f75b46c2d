"""Limits on bodies, checked before a service holds or parses them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triforge.errors import TooLargeError, TriforgeError
from triforge.json_text import SMALL as SHORT
from triforge.json_text import require_parsable, require_whole

MEBIBYTE: Final = 2**20
MAX_BODY: Final = 64 * MEBIBYTE  # bytes; 64 prompts of 32,000 token ids each are 14 MB
_METHODS: Final = ("POST", "PUT", "PATCH")


class RefusedBodyError(HTTPException):
    """A body that is refused while a route reads it; FastAPI passes this class of error on."""

    def __init__(self, reason: TriforgeError) -> None:
        super().__init__(status_code=reason.status, detail=reason.detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a route's body: bytes, and numbers in addition to the strings, lists and objects of every route."""

    size: int
    numbers: int = 0


SMALL: Final = Bounds(64 * 2**10)  # some fields, and text that a person wrote


class BodyLimit:
    """ASGI middleware that refuses a body that is too large, has too many parts, or is no text.

    Args:
        uploads: bytes by method and path, of routes that read their body in pieces and check it themselves.
    """

    def __init__(
        self, app: ASGIApp, *, bounds: Bounds, bodies: Mapping[str, Bounds], uploads: Mapping[str, int]
    ) -> None:  # fmt: skip
        self._app = app
        self._bounds = bounds
        self._uploads = dict(uploads)
        split = [(route.split(" ", 1), limits) for route, limits in bodies.items()]
        self._bodies = [(method, compile_path(path)[0], limits) for (method, path), limits in split]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose body is checked while the app reads it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        of_route = (b for m, form, b in self._bodies if m == method and form.match(path))
        bounds = next(of_route, self._bounds)
        upload = self._uploads.get(f"{method} {path}")
        length = Headers(scope=scope).get("content-length", "")
        body = _Body(receive, bounds.size if upload is None else upload, length)
        if method in _METHODS and upload is None:
            await self._app(scope, lambda: body.whole(bounds.numbers), send)
        else:
            await self._app(scope, body.part, send)


class _Body:
    """The messages of a request's body, refused above `limit` bytes: at once if the declared length is larger."""

    def __init__(self, receive: Receive, limit: int, length: str) -> None:
        self._receive, self._limit = receive, limit
        self._size = int(length) if length.isdecimal() and int(length) > limit else 0
        self._is_read = False

    async def part(self) -> Message:
        """Return the next message."""
        message: Message = {} if self._size > self._limit else await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            detail = (
                f"body: larger than {self._limit} bytes, this route's limit; send less at a time"
            )
            raise RefusedBodyError(TooLargeError(detail))
        return message

    async def whole(self, numbers: int) -> Message:
        """Return the body as one checked message, then the messages after it."""
        if self._is_read:
            return await self._receive()
        message: Message = {"more_body": True}
        parts = []
        while message.get("more_body"):
            message = await self.part()
            parts.append(message.get("body", b""))
        self._is_read = True
        body = b"".join(parts)
        try:
            if len(body) <= SHORT:
                _check(body, numbers)
            else:
                await asyncio.to_thread(_check, body, numbers)
        except TriforgeError as error:
            raise RefusedBodyError(error) from None
        return {**message, "body": body} if message["type"] == "http.request" else message


def _check(body: bytes, numbers: int) -> None:
    require_parsable(body, numbers=numbers)
    require_whole(body)
