"""Limits on bodies, kept before a service holds or parses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triforge.errors import TooLargeError, TriforgeError
from triforge.json_text import demand_parsable, demand_whole

KIBIBYTE: Final = 2**10
MEBIBYTE: Final = 2**20
MAX_BODY: Final = 64 * MEBIBYTE  # bytes; 64 prompts of 32,000 token ids each are 14 MB
_METHODS: Final = ("POST", "PUT", "PATCH")


class RefusedBodyError(HTTPException):
    """A body is refused while a route reads it; FastAPI lets this class of error through."""

    def __init__(self, reason: TriforgeError) -> None:
        super().__init__(status_code=reason.status, detail=reason.detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a route takes: bytes, and numbers beside the strings, lists and objects that every route takes."""

    size: int
    numbers: int = 0


SMALL: Final = Bounds(64 * KIBIBYTE)  # some fields, and text that a person wrote


class BodyLimit:
    """ASGI middleware that ends a request whose body is too large, too much to parse, or no text.

    Args:
        uploads: bytes by method and path, of routes that read their body in pieces and check it themselves.
    """

    def __init__(
        self, app: ASGIApp, *, bounds: Bounds, bodies: Mapping[str, Bounds], uploads: Mapping[str, int]
    ) -> None:  # fmt: skip
        self._app = app
        self._bounds = bounds
        self._bodies, self._uploads = dict(bodies), dict(uploads)
        split = (route.split(" ", 1) for route in bodies if "{" in route)
        self._templates = [(m, compile_path(p)[0], bodies[f"{m} {p}"]) for m, p in split]

    def _bounds_of(self, method: str, path: str) -> Bounds:
        found = self._bodies.get(f"{method} {path}")
        at = (b for wanted, form, b in self._templates if wanted == method and form.match(path))
        return found or next(at, self._bounds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body checked."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = f"{scope['method']} {scope['path']}"
        bounds = self._bounds_of(scope["method"], scope["path"])
        declared = Headers(scope=scope).get("content-length", "")
        read = _counted(receive, self._uploads.get(route, bounds.size), declared)
        if scope["method"] in _METHODS and route not in self._uploads:
            read = _checked(read, bounds.numbers)
        await self._app(scope, read, send)


def _counted(receive: Receive, limit: int, declared: str) -> Receive:
    """What comes, while it is at most `limit` bytes."""
    over = declared.isdecimal() and int(declared) > limit
    read = 0

    async def counted() -> Message:
        nonlocal read
        message: Message = {} if over else await receive()  # not a byte of it is awaited
        read += len(message.get("body", b""))
        if over or read > limit:
            raise RefusedBodyError(
                TooLargeError(
                    f"body: larger than {limit} bytes, which is what this route takes; send less at a time"
                )
            )
        return message

    return counted


def _checked(receive: Receive, numbers: int) -> Receive:
    """The body in one message, checked, and then whatever comes behind it."""
    whole = False

    async def checked() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        message: Message = {"more_body": True}
        parts = []
        while message.get("more_body"):
            message = await receive()
            parts.append(message.get("body", b""))
        whole = True
        body = b"".join(parts)
        try:
            demand_parsable(body, numbers=numbers)
            demand_whole(body)
        except TriforgeError as error:
            raise RefusedBodyError(error) from None
        return {**message, "body": body} if message["type"] == "http.request" else message

    return checked
