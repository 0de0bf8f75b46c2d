"""The web server of a service: what it takes of strangers before any of our code is asked."""

from __future__ import annotations

import json
from asyncio import TimerHandle
from http import HTTPStatus
from typing import Any, Final, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD: Final = 64 * 1024  # bytes of a request's line and headers; real ones have less than 2 KiB
HEAD_S: Final = 30.0  # for them, from the first byte on, or from the connection
BODY_S: Final = 30.0  # in which at least BODY_LEAST bytes of a body come, or its end
BODY_LEAST: Final = 30 * 1024
_TOO_LARGE: Final = f"the request line and headers are larger than {MAX_HEAD} bytes"
_END: Final = b"\r\n\r\n"  # of headers, and of a body in chunks


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's fast protocol, which keeps no limit on headers itself, and waits for a request for as long as it takes.

    What arrives is given on in parts that end where headers and bodies end, so every byte is known to belong to one of
    them, however requests are cut in pieces or sent one behind the other. A body in chunks may end with headers of its
    own: twice as much of them is taken at most.

    Who has begun a request has to go on with it, or the connection is closed: thousands of them that say a byte now and then
    would keep everybody else out. While the service itself is what is waited for, nobody is late.

    Attributes:
        max_head: most bytes of a request's line and headers.
        head_s: seconds for them.
        body_s: seconds in which `body_least` bytes of a body come.
        body_least: see there.
    """

    max_head = MAX_HEAD
    head_s = HEAD_S
    body_s = BODY_S
    body_least = BODY_LEAST

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading: Literal["head", "body", "chunks"] = "head"
        self._counted = 0  # bytes of the headers that are being read
        self._left = 0  # bytes that the body still has
        self._before = b""  # what was read last, in which an end may have begun
        self._came = 0  # bytes of the body since the timer was set
        self._timer: TimerHandle | None = None  # while somebody has to go on with a request
        self._is_http = True

    def connection_made(self, transport: Any) -> None:
        """Somebody is there, and has to say what they want."""
        super().connection_made(transport)
        self._wait(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """They are gone."""
        self._wait_no_more()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """What comes from now on is another protocol's."""
        self._is_http = False
        super().handle_websocket_upgrade()

    def on_headers_complete(self) -> None:
        """The headers have ended."""
        super().on_headers_complete()
        named = dict(self.headers)
        chunked = b"transfer-encoding" in named
        self._reading, self._counted = "chunks" if chunked else "body", 0
        self._left = 0 if chunked else int(named.get(b"content-length", b"0"))
        self._wait_no_more()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._counted = 0
        self._came += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has ended; what comes next are headers."""
        super().on_message_complete()
        self._reading, self._counted, self._before = "head", 0, b""
        self._wait_no_more()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        at = 0
        while at < len(data) and self._is_http and not self.transport.is_closing():
            end = self._end_of_part(data, at)
            if self._reading != "body":
                self._counted += end - at
            if self._reading == "head" and self._counted > self.max_head:
                self._refuse(431, "too_large", _TOO_LARGE)
                return
            super().data_received(data[at:end] if end - at < len(data) else data)
            if self._counted > self.max_head:
                self._refuse(431, "too_large", _TOO_LARGE)
            at = end
        begun = self._reading != "head" or self._counted > 0
        if begun and self._timer is None and self._is_http and not self.transport.is_closing():
            self._wait(self.head_s if self._reading == "head" else self.body_s)

    def _end_of_part(self, data: bytes, at: int) -> int:
        """Up to where the bytes from `at` on are of the same headers or of the same body."""
        if self._reading == "body":
            end = min(len(data), at + self._left) if self._left else len(data)
            self._left -= min(self._left, end - at)
            return end
        begun = (self._before + data[at : at + 3]).find(_END)
        if begun >= 0:  # partly in what came before
            end = at + begun + len(_END) - len(self._before)
        else:
            found = data.find(_END, at)
            end = len(data) if found < 0 else found + len(_END)
        if self._reading == "chunks":  # how much of a part stands behind the body, nobody knows
            end = min(end, at + self.max_head)
        self._before = (self._before + data[max(at, end - 3) : end])[-3:]
        return end

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's sentence for it)
        """What came is no HTTP."""
        self._refuse(400, "bad_request", "this is no request of HTTP/1.1, or not a whole one")

    def _refuse(self, status: int, kind: str, detail: str) -> None:
        """Answer past the service, as it answers errors itself, and hang up; only hang up where it would cut an answer in two."""
        if self._may_answer():
            title = kind.replace("_", " ").capitalize()
            said = json.dumps(
                {"type": f"urn:triforge:{kind}", "title": title, "status": status, "detail": detail}
            )
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/problem+json\r\n"
            rest = f"content-length: {len(said)}\r\nconnection: close\r\n\r\n{said}"
            self.transport.write((head + rest).encode("ascii"))
        self.transport.close()

    def _may_answer(self) -> bool:
        """Whether an answer now is one to the request that is being read."""
        if (
            self.cycle is None or self.pipeline
        ):  # of several requests at once an earlier one is being answered
            return self.cycle is None
        if self._reading == "head":
            return self.cycle.response_complete
        return not self.cycle.response_started

    def _wait(self, seconds: float) -> None:
        self._came = 0
        self._timer = self.loop.call_later(seconds, self._late)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """The time is over for what had to come."""
        self._timer = None
        if self._reading == "head":
            seconds = self.head_s
            excused = self.cycle is not None and not self.cycle.response_complete
        else:
            seconds = self.body_s
            held = self.flow.read_paused or self.cycle.waiting_for_100_continue
            excused = held or self._came >= self.body_least
        if excused:
            self._wait(seconds)
        else:
            self._refuse(
                408, "request_timeout", f"the request did not go on for {seconds:g} seconds"
            )


def careful(*, ws: Literal["none", "wsproto"] = "none") -> dict[str, Any]:
    """What every service's `uvicorn.Config` is given beside its address.

    Args:
        ws: what speaks WebSocket; no room of a deployment does.

    No header says where a request came from: the record must not be written by strangers. Behind a proxy the proxy's own
    log says it.
    """
    return {"http": LimitedProtocol, "ws": ws, "proxy_headers": False, "server_header": False}
