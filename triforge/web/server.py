"""The web server of a service: uvicorn, with limits on headers and on the time that a request may take to come."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any, Final, Literal, TypeVar

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from triforge.telemetry import server_options

_T = TypeVar("_T")

_MESSAGE: Final = 2 * 2**20  # bytes of a message over a WebSocket
MAX_HEAD: Final = 64 * 1024  # bytes of a request's line and headers; real ones have less than 2 KiB


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which refuses endless headers and closes a connection whose request does not go on.

    Attributes:
        wait_s: seconds in which headers must end, and in which `body_least` bytes of a body must come.
        body_least: bytes.
    """

    wait_s = 30.0
    body_least = 30 * 1024
    _reading: Literal["", "head", "body"] = "head"  # what the client has to send
    _watched: Literal["", "head", "body"] = ""  # the same when the timer was set
    _came = 0  # bytes since then
    _timer: TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._reading = "head"

    def on_headers_complete(self) -> None:
        """Its body follows."""
        super().on_headers_complete()
        self._reading = "body"

    def on_message_complete(self) -> None:
        """It is whole."""
        super().on_message_complete()
        self._reading = ""

    def data_received(self, data: bytes) -> None:
        """Count the bytes, and wait for what is missing."""
        self._came += len(data)
        super().data_received(data)
        if self._reading == self._watched == "head" and self._came > MAX_HEAD:
            self.send_400_response(f"the headers are larger than {MAX_HEAD} bytes")
        self._watch()

    def _watch(self) -> None:
        """Set the timer while the client has to send something; start it anew when headers have become a body."""
        if self._timer is not None and self._reading != self._watched:
            self._stop()
        if self._reading and self._timer is None and not self.transport.is_closing():
            self._watched, self._came = self._reading, 0
            self._timer = self.loop.call_later(self.wait_s, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._watched == "head":
            excused = answering
        else:
            held = self.flow.read_paused or (answering and self.cycle.waiting_for_100_continue)
            excused = held or self._came >= self.body_least
        if excused:
            self._watch()
        else:
            self.transport.close()


def careful(*, ws: Literal["none", "wsproto"] = "none") -> dict[str, Any]:
    """What every service's `uvicorn.Config` is given beside its address; `ws` is what speaks WebSocket.

    No header says where a request came from: the record must not be written by strangers. Behind a proxy the proxy's own
    log says it.
    """
    return {
        "http": PatientProtocol, "ws": ws, "ws_max_size": _MESSAGE, "proxy_headers": False, "server_header": False,
    }  # fmt: skip


def config_of(app: ASGIApp, host: str, port: int, **options: Any) -> uvicorn.Config:
    """How a service serves its app; `options` of uvicorn's lie over what all services have in common."""
    common = {"timeout_graceful_shutdown": 5, **server_options(), **careful()}
    return uvicorn.Config(app, host=host, port=port, **common | options)


class DrainingServer(uvicorn.Server):
    """At the first signal it serves on until `drain` has ended; a second signal ends it at once.

    Meanwhile the listener stays open, so that new requests can be refused with a reason and a Retry-After.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._signalled = False
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """A signal has come. None is raised again afterwards, as uvicorn would: ending is no failure."""
        if self._signalled:
            self.force_exit, self.should_exit = self.should_exit, True
        self._signalled = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._signalled and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        if self._draining is not None and self._draining.done():
            self.should_exit = True
        return await super().on_tick(counter)


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T:
    """Finish `work`, or give it up with ClientDisconnect when the client, whose body has been read, hangs up."""
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
