"""A collector of traces: takes OTLP over HTTP and writes what it has seen, a line of JSON a span.

Run in a container of the stack's own images (`python -c TEXT`), which hold what reads OTLP where they were built with OpenTelemetry.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PORT, ROUTE = 4318, "/v1/traces"


def spans_of(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield what one request brings: who sent it, name, ids, what it links to, attributes that are text."""
    for part in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = {item.key: item.value.string_value for item in part.resource.attributes}
        for span in (span for scope in part.scope_spans for span in scope.spans):
            yield {
                "service": resource["service.name"],
                "name": span.name,
                "trace": span.trace_id.hex(),
                "id": span.span_id.hex(),
                "parent": span.parent_span_id.hex(),
                "links": [link.span_id.hex() for link in span.links],
                "attributes": {a.key: a.value.string_value for a in span.attributes},
            }


def serve(path: Path) -> None:
    """Take what comes until the process is ended."""

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == ROUTE:
                lines = [json.dumps(span) + "\n" for span in spans_of(body)]
                with path.open("a") as file:  # one write: threads do not part each other's lines
                    file.write("".join(lines))
            self.send_response(200 if self.path == ROUTE else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    path.touch()
    ThreadingHTTPServer(("", PORT), Api).serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
