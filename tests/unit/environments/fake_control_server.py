"""A machine behind OSWorld's control server, as far as an adapter can tell: a screen, files, and a few commands.

It runs nothing: a command is answered from `answers`, programs of pyautogui are written down in `moved`, files live in a
dictionary. For tests of what speaks to such a machine; it says nothing about a real one.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Mapping
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs


class FakeControlServer:
    """Listens on a free port of this host until `close`.

    Attributes:
        files: path to bytes.
        answers: command line, words joined by blanks, to (output, error); anything else answers with nothing.
        moved: the statements of pyautogui that were sent, without their imports.
        launched: commands that were launched.
        broken: while True every route answers 500.
        paralysed: while True pyautogui fails, as it does without a display.
        shown: how many screenshots were given.

    Args:
        answers: see above.
    """

    def __init__(self, answers: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.answers = dict(answers or {})
        self.moved: list[str] = []
        self.launched: list[Any] = []
        self.broken = False
        self.paralysed = False
        self.shown = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, kind: str, body: bytes) -> tuple[int, bytes]:
        """Status and body for one request."""
        if self.broken:
            return 500, b"broken"
        if path == "/screenshot":
            self.shown += 1
            return 200, screen(len(self.moved))
        if path in ("/execute", "/setup/launch"):
            return self._command(path, json.loads(body))
        if path == "/file":
            found = self.files.get(parse_qs(body.decode())["file_path"][0])
            return (404, b"no such file") if found is None else (200, found)
        if path == "/setup/upload":
            fields = form(kind, body)
            self.files[fields["file_path"].decode()] = fields["file_data"]
            return 200, b"{}"
        return 404, b"no such route"

    def _command(self, path: str, given: dict[str, Any]) -> tuple[int, bytes]:
        command = given["command"]
        if path == "/setup/launch":
            self.launched.append(command)
            return 200, b"{}"
        moves = isinstance(command, list) and command[:2] == ["python", "-c"]
        if moves:
            self.moved.append(command[2].rpartition("FAILSAFE = False; ")[2])
            command = ""
        line = command if isinstance(command, str) else " ".join(command)
        output, error = self.answers.get(line, ("", ""))
        status = int(moves and self.paralysed)
        answer = {"status": "success", "output": output, "error": error, "returncode": status}
        return 200, json.dumps(answer).encode()


def screen(shade: int, width: int = 200, height: int = 100) -> bytes:
    """A PNG file of one grey."""
    rows = (b"\0" + bytes([shade % 256]) * width) * height
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))  # fmt: skip
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def form(kind: str, body: bytes) -> dict[str, bytes]:
    """The fields of a multipart form."""
    message = message_from_bytes(b"content-type: " + kind.encode() + b"\r\n\r\n" + body)
    fields: dict[str, bytes] = {}
    for part in message.walk():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            fields[name] = content
    return fields


def _handler(machine: FakeControlServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, content = machine.answer(
                self.path, self.headers.get("content-type") or "", body
            )
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler


__all__ = ["FakeControlServer"]
