"""A collector of traces for tests: takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

broker = pytest.importorskip(
    "scripts.compose_test.collector",
    reason="OpenTelemetry is not installed; pip install -c constraints.txt -e '.[otel]'",
    exc_type=ImportError,
)


@dataclass(frozen=True)
class Seen:
    """A span as it was sent."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    links: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> str:
        return dict(self.attributes)[name]


@contextmanager
def collector() -> Iterator[tuple[str, list[Seen]]]:
    """Its address, and what it has seen so far."""
    seen: list[Seen] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == broker.ROUTE
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.extend(map(seen_as, broker.spans_of(body)))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def seen_as(span: dict[str, Any]) -> Seen:
    listed = {"links": tuple(span["links"]), "attributes": tuple(span["attributes"].items())}
    return Seen(**{**span, **listed})
