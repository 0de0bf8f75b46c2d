"""The native API, `POST /v1/generate`: from bytes to bytes, past the web framework.

Every turn of every rollout comes through here, and the framework's own way in and out takes longer than all we do. The
route stands in the framework's table as well, for the description of the API, and does the same.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from services.policy.access import SAMPLING
from services.policy.gateway import Gateway
from triforge.access.gate import Gate
from triforge.access.versions import HEADER as VERSION_HEADER
from triforge.access.versions import demand_not_newer
from triforge.telemetry import tracing
from triforge.telemetry.ids import came_with
from triforge.types import GenerateReply, GenerateRequest
from triforge.web.limits import BodyTooLargeError
from triforge.web.problems import input_error, response_to

_T = TypeVar("_T")

PATH: Final = "/v1/generate"
_VERSION: Final = VERSION_HEADER.lower().encode()
_JSON: Final = (b"content-type", b"application/json")


class GenerateBatch(BaseModel):
    """Body of `POST /v1/generate`."""

    model_config = ConfigDict(extra="forbid")
    requests: tuple[GenerateRequest, ...]


class ReplyBatch(BaseModel):
    """Answer of `POST /v1/generate`, in the order of the requests."""

    replies: list[GenerateReply]


_REPLIES: Final = TypeAdapter(ReplyBatch)


class GoneError(Exception):
    """The client has hung up."""


def authorise(given: bytes, key: str) -> None:
    """Check the value of an Authorization header.

    Raises:
        HTTPException: it is not the key's; an empty key opens to all.
    """
    if key and not hmac.compare_digest(given, b"Bearer " + key.encode()):
        raise HTTPException(
            401,
            "a bearer token is needed: send the service's TRIFORGE_API_KEY as `Authorization: Bearer ...`",
            {"WWW-Authenticate": "Bearer"},
        )


async def answer(gateway: Gateway, body: bytes) -> bytes:
    """A batch of requests as JSON, and its replies as JSON.

    Raises:
        InputError: the body is no batch.
        TriforgeError: see `Gateway.generate`.
    """
    try:
        batch = GenerateBatch.model_validate_json(body)
    except ValidationError as error:
        raise input_error(error) from None
    replies = await gateway.generate(batch.requests)
    return _REPLIES.dump_json(ReplyBatch.model_construct(replies=replies))


async def unless_gone(receive: Receive, work: Awaitable[_T]) -> _T:
    """Finish `work`, or give it up when the client hangs up.

    Args:
        receive: of a request whose body has been read.
        work: what the client waits for.

    Raises:
        GoneError: it has hung up.
    """
    try:
        async with asyncio.timeout(None) as scope:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                scope.reschedule(asyncio.get_running_loop().time())

            watcher = asyncio.create_task(watch())
            try:
                return await work
            finally:
                watcher.cancel()
    except TimeoutError:
        raise GoneError from None


class NativeApi:
    """ASGI: answers its own path and passes everything else on.

    Args:
        app: the service's framework application.
        gateway: what answers.
        gate: asks for keys.
        api_key: bearer token that callers must send where it asks for none; empty takes everybody.
        max_body: bytes of a request's body; a larger one is a 413.
    """

    def __init__(
        self, app: ASGIApp, gateway: Gateway, *, gate: Gate, api_key: str, max_body: int
    ) -> None:
        self._app = app
        self._gateway = gateway
        self._gate = gate
        self._api_key = api_key
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one event of ASGI."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if b"origin" in headers:  # a browser, which reads only what the framework's CORS lets it
            await self._app(scope, receive, send)
            return
        try:
            above = ""
            if await self._admit(headers):
                came_with(headers.get(b"baggage", b""))
                above = headers.get(b"traceparent", b"").decode("latin-1")
            body = await self._read(headers.get(b"content-length", b"0"), receive)
            if tracing.is_on():
                found = await self._traced(above, receive, body)
            else:
                found = await unless_gone(receive, answer(self._gateway, body))
        except GoneError:
            return
        except Exception as error:  # noqa: BLE001 - the last line before the web server
            await (await response_to(error))(scope, receive, send)
            return
        size = (b"content-length", str(len(found)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [_JSON, size]})
        await send({"type": "http.response.body", "body": found})

    async def _admit(self, headers: Mapping[bytes, bytes]) -> bool:
        """Let in who may; whether its word is taken on whom the request is about."""
        authorization = headers.get(b"authorization", b"")
        if self._gate.is_service(authorization):  # nearly all of what comes here
            return True
        if _VERSION in headers:
            demand_not_newer(headers[_VERSION].decode("latin-1"))
        authorise(authorization, self._api_key)
        await self._gate.admit(authorization, SAMPLING.wants)
        return not self._gate.asks

    async def _traced(self, above: str, receive: Receive, body: bytes) -> bytes:
        with tracing.served(f"POST {PATH}", above):
            return await unless_gone(receive, answer(self._gateway, body))

    async def _read(self, declared: bytes, receive: Receive) -> bytes:
        if declared.isdigit() and int(declared) > self._max_body:
            raise BodyTooLargeError(self._max_body)
        parts: list[bytes] = []
        size = 0
        while True:
            message: Any = await receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            part = message.get("body", b"")
            size += len(part)
            if size > self._max_body:
                raise BodyTooLargeError(self._max_body)
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)
