"""The web server of a room: what it takes of strangers before any of our code is asked."""

from __future__ import annotations

from typing import Any, Final, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD: Final = 64 * 1024  # bytes of a request's line and headers; real ones have less than 2 KiB
_REFUSAL: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/problem+json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
)
_SAID: Final = (
    b'{"type":"urn:triforge:too_large","title":"Too large","status":431,'
    b'"detail":"the request line and headers are larger than %d bytes"}' % MAX_HEAD
)
_END: Final = b"\r\n\r\n"  # of headers, and of a body in chunks


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's fast protocol, which keeps no limit on headers itself: whatever arrives is held until they end.

    What arrives is given on in parts that end where headers and bodies end, so every byte is known to belong to one of
    them, however requests are cut in pieces or sent one behind the other. A body in chunks may end with headers of its
    own: twice as much of them is taken at most.

    Attributes:
        max_head: most bytes of a request's line and headers.
    """

    max_head = MAX_HEAD

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading: Literal["head", "body", "chunks"] = "head"
        self._counted = 0  # bytes of the headers that are being read
        self._left = 0  # bytes that the body still has
        self._before = b""  # what was read last, in which an end may have begun

    def on_headers_complete(self) -> None:
        """The headers have ended."""
        super().on_headers_complete()
        named = dict(self.headers)
        chunked = b"transfer-encoding" in named
        self._reading, self._counted = "chunks" if chunked else "body", 0
        self._left = 0 if chunked else int(named.get(b"content-length", b"0"))

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._counted = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has ended; what comes next are headers."""
        super().on_message_complete()
        self._reading, self._counted, self._before = "head", 0, b""

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        at = 0
        while at < len(data) and not self.transport.is_closing():
            end = self._end_of_part(data, at)
            if self._reading != "body":
                self._counted += end - at
            if self._reading == "head" and self._counted > self.max_head:
                self._refuse()
                return
            super().data_received(data[at:end] if end - at < len(data) else data)
            if self._counted > self.max_head:
                self._refuse()
            at = end

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

    def _refuse(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else it would cut an answer in two
            self.transport.write(_REFUSAL % (len(_SAID), _SAID))
        self.transport.close()


def careful() -> dict[str, Any]:
    """What every room's `uvicorn.Config` is given beside its address.

    No header says where a request came from: the record must not be written by strangers. Behind a proxy the proxy's own
    log says it.
    """
    return {"http": LimitedProtocol, "ws": "none", "proxy_headers": False, "server_header": False}
