"""The web server of a service: uvicorn, with limits on headers and on the time that a request may take to come."""

from __future__ import annotations

from asyncio import TimerHandle
from typing import Any, Final, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
    return {"http": PatientProtocol, "ws": ws, "proxy_headers": False, "server_header": False}
