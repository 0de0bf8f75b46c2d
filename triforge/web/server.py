"""The web server of a service: uvicorn, with limits on headers and on the time that a request may take to come."""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import Any, Final, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD: Final = 64 * 1024  # bytes of a request's line and headers; real ones have less than 2 KiB


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, which closes a connection whose request does not go on.

    Attributes:
        wait_s: seconds in which headers must end, and in which `body_least` bytes of a body must come.
        body_least: bytes.
    """

    wait_s = 30.0
    body_least = 30 * 1024
    _timer: TimerHandle | None = None
    _state: Any = None  # of the client when the timer was set
    _came = 0  # bytes since then

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes, and wait for what is missing."""
        self._came += len(data)
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the rest of a request that was answered early."""
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Set the timer while the client has to send something; start it anew when headers have become a body."""
        state = self.conn.their_state
        begun = self.cycle is None or bool(self.conn.trailing_data[0])
        due = state is h11.SEND_BODY or (state is h11.IDLE and begun)
        if self._timer is not None and (not due or state is not self._state):
            self._stop()
        if due and self._timer is None and not self.transport.is_closing():
            self._state, self._came = state, 0
            self._timer = self.loop.call_later(self.wait_s, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        reading = self._state is h11.SEND_BODY
        held = reading and (self.flow.read_paused or self.conn.they_are_waiting_for_100_continue)
        if held or (reading and self._came >= self.body_least):
            self._watch()
        else:
            self.transport.close()


def careful(*, ws: Literal["none", "wsproto"] = "none") -> dict[str, Any]:
    """What every service's `uvicorn.Config` is given beside its address; `ws` is what speaks WebSocket.

    No header says where a request came from: the record must not be written by strangers. Behind a proxy the proxy's own
    log says it.
    """
    return {
        "http": PatientProtocol,
        "h11_max_incomplete_event_size": MAX_HEAD,
        "ws": ws,
        "proxy_headers": False,
        "server_header": False,
    }
