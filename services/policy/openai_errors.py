"""Problem documents that clients of OpenAI can read, too: their sentence once more as `error.message`, where such clients look."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from triforge.web.problems import PROBLEM_TYPE

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

PATHS = ("/v1/chat/completions", "/v1/models")


class Readable:
    """Sends one response; a problem document gets an `error`.

    Args:
        send: where the response goes.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None  # of a problem document, until its body is there
        self._body = b""

    async def __call__(self, message: Message) -> None:
        """Take one event of ASGI."""
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._answer(self._start, json.loads(self._body))

    async def _answer(self, start: Message, found: dict[str, Any]) -> None:
        kind = str(found["type"]).rpartition(":")[2]
        error = {"message": found["detail"], "type": kind, "code": found["status"]}
        body = json.dumps({**found, "error": error}).encode()
        headers = [
            (name, str(len(body)).encode() if name == b"content-length" else value)
            for name, value in start["headers"]
        ]
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _is_problem(start: Message) -> bool:
    return any(
        name == b"content-type" and value == PROBLEM_TYPE.encode()
        for name, value in start["headers"]
    )
