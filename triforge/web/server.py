"""The web server of a service: uvicorn, with limits on headers and on slow requests."""

from __future__ import annotations

import asyncio
import gc
from asyncio import TimerHandle
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any, Final, Literal, TypeVar

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from triforge.telemetry import server_options

_T = TypeVar("_T")
_Part = Literal["", "head", "body"]

MAX_HEAD: Final = 64 * 1024  # bytes of a request's line and headers; real ones have less than 2 KiB
_COMMON: Final = {
    "timeout_graceful_shutdown": 5, "ws": "none", "ws_max_size": 2 * 2**20, "server_header": False,
    "proxy_headers": False,  # only a proxy's own log knows the client behind it
}  # fmt: skip


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which refuses endless headers and closes a connection whose request does not arrive.

    Attributes:
        wait_s: seconds in which headers must end, and in which `body_least` bytes of a body must arrive.
    """

    wait_s = 30.0
    body_least = 30 * 1024
    _expected: _Part = ""  # the part of a request that the client has to send
    _received = 0  # bytes of it, or more
    _timer: TimerHandle | None = None

    def _expect(self, part: _Part) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._expected, self._received = part, 0
        self._timer = self.loop.call_later(self.wait_s, self._late) if part else None

    def connection_made(self, transport: Any) -> None:
        """Expect the first request."""
        super().connection_made(transport)
        self._expect("head")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._expect("")
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Expect headers."""
        super().on_message_begin()
        self._expect("head")

    def on_headers_complete(self) -> None:
        """Expect a body."""
        super().on_headers_complete()
        self._expect("body")

    def on_message_complete(self) -> None:
        """Expect nothing."""
        super().on_message_complete()
        self._expect("")

    def data_received(self, data: bytes) -> None:
        """Parse and count the bytes of a request."""
        super().data_received(data)
        self._received += len(data)
        if self._expected == "head" and self._received > MAX_HEAD:
            self.send_400_response(f"the headers are larger than {MAX_HEAD} bytes")

    def _late(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._expected == "head":
            excused = answering
        else:
            held = self.flow.read_paused or (answering and self.cycle.waiting_for_100_continue)
            excused = held or self._received >= self.body_least
        if excused:
            self._expect(self._expected)
        else:
            self.transport.close()


def config_of(app: ASGIApp, host: str, port: int, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration of a service; `options` replace those that all services share."""
    gc.freeze()  # the loaded modules stay; collecting them again and again would hold up requests
    common = {**_COMMON, "http": PatientProtocol, **server_options()}
    return uvicorn.Config(app, host=host, port=port, **common | options)


class DrainingServer(uvicorn.Server):
    """A server that serves until `drain` has ended after the first signal; a second signal ends it at once.

    The listener stays open meanwhile, so that new requests can be refused with a reason and a Retry-After.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._signalled = False
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to drain. The signal is not raised again afterwards: ending is no failure."""
        if self._signalled:
            self.force_exit, self.should_exit = self.should_exit, True
        self._signalled = True

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; called ten times a second."""
        if self._signalled and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        if self._draining is not None and self._draining.done():
            self.should_exit = True
        return await super().on_tick(counter)


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T:
    """Await `work`, or cancel it with ClientDisconnect when the client, whose body has been read, hangs up."""
    try:
        async with asyncio.timeout(None) as scope:

            async def watch() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                scope.reschedule(asyncio.get_running_loop().time())

            watcher = asyncio.create_task(watch())
            try:
                return await work
            finally:
                watcher.cancel()
    except TimeoutError:
        raise ClientDisconnect from None


class EventStream(StreamingResponse):
    """Server-sent events. `source`, from which `lines` are made, ends with the answer: also if no line of it was ever read."""

    def __init__(self, lines: AsyncIterator[str], source: AsyncGenerator[Any, None]) -> None:
        headers = {"cache-control": "no-cache"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._source.aclose()
