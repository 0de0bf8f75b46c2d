"""A limit on bodies, kept before a service holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triforge.errors import TooLargeError

MEBIBYTE: Final = 2**20
MAX_BODY: Final = 64 * MEBIBYTE  # bytes; 64 prompts of 32,000 token ids each are 14 MB


class BodyTooLargeError(HTTPException):
    """The body went over the limit while a route was reading it; FastAPI lets this class of error through."""

    def __init__(self, limit: int) -> None:
        detail = (
            f"body: larger than {limit} bytes, which is what this route takes; send less at a time"
        )
        super().__init__(status_code=TooLargeError.status, detail=detail)


class BodyLimit:
    """ASGI middleware that ends a request whose body grows over a limit, before the service holds it.

    `uploads` are other limits, by method and path, for routes that do not keep the body in memory.
    """

    def __init__(self, app: ASGIApp, *, limit: int, uploads: Mapping[str, int]) -> None:
        self._app = app
        self._limit = limit
        self._uploads = dict(uploads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its bytes counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = f"{scope['method']} {scope['path']}"
        limit = self._uploads.get(route, self._limit)
        declared = Headers(scope=scope).get("content-length", "")
        over = declared.isdecimal() and int(declared) > limit
        read = 0

        async def counted() -> Message:
            nonlocal read
            if over:  # not a byte of it is awaited
                raise BodyTooLargeError(limit)
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise BodyTooLargeError(limit)
            return message

        await self._app(scope, counted, send)
