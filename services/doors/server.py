"""The web server of a room: what it takes of strangers before any of our code is asked."""

from __future__ import annotations

import asyncio
from typing import Any, Final

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


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's fast protocol, which keeps no limit on headers itself: whatever arrives is held until they end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = 0
        self._reading_head = True

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head, self._reading_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The headers have ended."""
        self._reading_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes have come; a part of what comes at once may be a body, so the sum counts where headers go on."""
        before = self._head
        super().data_received(data)
        if self._reading_head and not self.transport.is_closing():
            self._head = before + len(data)
            if self._head > MAX_HEAD:
                transport: asyncio.Transport = self.transport
                transport.write(_REFUSAL % (len(_SAID), _SAID))
                transport.close()


def careful() -> dict[str, Any]:
    """What every room's `uvicorn.Config` is given beside its address.

    No header says where a request came from: the record must not be written by strangers. Behind a proxy the proxy's own
    log says it.
    """
    return {"http": LimitedProtocol, "ws": "none", "proxy_headers": False, "server_header": False}
