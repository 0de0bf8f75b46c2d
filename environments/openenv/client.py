"""One session with an OpenEnv server over its WebSocket."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import aiohttp

from triforge.environments.egress import Reach, place_of
from triforge.errors import EnvError

_MAX_MESSAGE: Final = 64 * 2**20  # bytes; observations may hold screenshots
_REFUSALS: Final = ("VALIDATION_ERROR", "INVALID_JSON")
# What a server that is none, or that breaks off, makes of a call.
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError)


class RefusedError(EnvError):
    """The server says that what it was sent is malformed; it has done nothing, and the session goes on."""


class SessionClient:
    """Asks one question at a time.

    Args:
        url: the server's http(s) address.
        timeout_s: seconds for one answer.
        reach: what may be connected to.
    """

    def __init__(self, url: str, *, timeout_s: float, reach: Reach) -> None:
        self._url = url.rstrip("/")
        self._reach = reach
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self) -> dict[str, Any]:
        """Connect; returns the schema of the server's actions."""
        self._http = self._reach.session(*place_of(self._url), timeout_s=self._timeout_s)
        try:
            async with self._http.get(f"{self._url}/schema") as reply:
                reply.raise_for_status()
                schema = await reply.json()
            self._socket = await self._http.ws_connect(f"{self._url}/ws", max_msg_size=_MAX_MESSAGE)
            action: dict[str, Any] = schema["action"]
        except _FAILURES as error:
            await self.close()
            raise EnvError(
                f"openenv: no OpenEnv server answers at {self._url} ({type(error).__name__}: {error}); start one, "
                "for example: triforge env serve household"
            ) from error
        return action

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message; returns the data of the answer."""
        if self._socket is None:
            raise EnvError("openenv: the session is closed")
        try:
            await self._socket.send_str(json.dumps(message))
            async with asyncio.timeout(self._timeout_s):
                reply = json.loads(await self._socket.receive_str())
            kind, data = reply["type"], reply["data"]
        except _FAILURES as error:
            raise EnvError(
                f"openenv: {self._url} did not answer {message['type']!r}: {type(error).__name__}: {error}"
            ) from error
        if kind == "error":
            code = data.get("code")
            kind_of_error = RefusedError if code in _REFUSALS else EnvError
            raise kind_of_error(f"openenv: {self._url}: {code}: {data.get('message')}")
        found: dict[str, Any] = data
        return found

    async def close(self) -> None:
        """Hang up. Idempotent."""
        socket, self._socket = self._socket, None
        http, self._http = self._http, None
        if socket is not None:
            await socket.close()
        if http is not None:
            await http.close()
