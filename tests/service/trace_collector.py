"""A collector of traces for tests: takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

proto = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="OpenTelemetry is not installed; pip install -c constraints.txt -e '.[otel]'",
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
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.extend(spans_of(body))
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


def spans_of(body: bytes) -> Iterator[Seen]:
    """Yield the spans of one request."""
    for part in proto.ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = {item.key: item.value.string_value for item in part.resource.attributes}
        for span in (span for scope in part.scope_spans for span in scope.spans):
            yield Seen(
                service=resource["service.name"],
                name=span.name,
                trace=span.trace_id.hex(),
                id=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                links=tuple(link.span_id.hex() for link in span.links),
                attributes=tuple((a.key, a.value.string_value) for a in span.attributes),
            )
