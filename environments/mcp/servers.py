"""The operator's MCP servers, and connections to them: one for all episodes of an event loop, or one an episode.

Programs and addresses stand in a file of the operator, in the shape that MCP clients share. A task names a server in it, so an
upload of tasks can start nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic import Field, JsonValue, ValidationError

from triforge.config import Settings
from triforge.environments.kit import Strict
from triforge.errors import ConfigError, EnvError, InputError

OPTION: Final = "TRIFORGE_MCP_SERVERS"
_KEPT: Final = 64  # connections over HTTP that stay open when nothing is asked
_REFUSED: Final = (-32602, -32601)  # invalid parameters, no such tool: what the policy asked for


class Server(Strict):
    """A program that is spoken to over its standard input and output, or the URL of one that runs already."""

    command: str = ""
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = Field(default_factory=dict)
    type: str = ""
    per_episode: bool = False
    timeout_s: float = Field(default=60.0, gt=0, le=3600)

    def client(self) -> Any:
        """Make a client of the package `mcp`; a program inherits no variables of the services."""
        from mcp import Client, StdioServerParameters  # noqa: PLC0415  an extra

        if self.url:
            return Client(self._over_http())
        program = StdioServerParameters(
            command=self.command, args=self.args, env=self.env, cwd=self.cwd
        )
        return Client(program)

    @asynccontextmanager
    async def _over_http(self) -> AsyncIterator[Any]:
        """Open Streamable HTTP, with as many requests at a time as there are calls."""
        import httpx2  # noqa: PLC0415  of the package mcp
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        limits, timeout = httpx2.Limits(max_keepalive_connections=_KEPT), self.timeout_s
        async with (
            httpx2.AsyncClient(headers=self.headers, limits=limits, timeout=timeout) as http,
            streamable_http_client(self.url, http_client=http) as streams,
        ):
            yield streams


class _File(Strict, hide_input_in_errors=True):
    mcpServers: dict[str, Server]  # noqa: N815  the name that MCP clients share


def server_of(name: str) -> Server:
    """Return the server of that name in the operator's file."""
    place = Settings.from_env().mcp_servers
    try:
        known = _File.model_validate_json(Path(place).read_text()).mcpServers if place else {}
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{OPTION}: {place}: {error}") from None
    server = known.get(name)
    if server is None or bool(server.command) == bool(server.url):
        raise InputError(
            f"mcp params: field server: given {name!r}, expected a server that the operator names in the file of {OPTION} with a "
            f"command or a url; there are: {', '.join(sorted(known)) or 'none'}"
        )
    return server


class Connection:
    """An open connection, in a task of its own: the library's client must end in the task that began it."""

    def __init__(self, name: str, server: Server) -> None:
        self._name, self._server = name, server
        self.broken = False
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        try:
            async with self._server.client() as client:
                self._client.set_result(client)
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001  a server may fail in any way; callers get the error
            self.broken = True
            if not self._client.done():
                self._client.set_exception(self._failed("does not start", error))

    def _failed(self, what: str, error: BaseException) -> EnvError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return EnvError(f"mcp: server {self._name!r} {what}: {type(error).__name__}: {error}")

    async def tools(self) -> list[dict[str, JsonValue]]:
        """Return name, description and schema of each tool; an `EnvError` if the server does not list them."""
        tools, cursor = list[Any](), None
        while True:
            try:
                page = await self._ask("does not list its tools", partial(_page, cursor))
            except EnvError:
                self._break()
                raise
            tools += page.tools
            if not (cursor := page.next_cursor):  # some servers end with an empty one
                break
        return [
            {"name": one.name, "description": one.description or "", "arguments": one.input_schema}
            for one in tools
        ]

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> tuple[JsonValue, bool]:
        """Return the answer of a tool, and whether it succeeded; an `EnvError` if the server does not answer."""
        from mcp import MCPError  # noqa: PLC0415  an extra

        try:
            result = await self._ask(f"fails at {tool}", lambda c: c.call_tool(tool, arguments))
        except EnvError as error:
            cause = error.__cause__
            if isinstance(cause, MCPError) and cause.code in _REFUSED:
                return cause.message, False
            self._break()
            raise
        value = result.structured_content
        if isinstance(value, dict) and value.keys() == {"result"}:
            value = value["result"]
        if value is None:
            value = "\n".join(part.text for part in result.content if part.type == "text")
        return value, not result.is_error

    async def _ask(self, what: str, work: Any) -> Any:
        try:
            async with asyncio.timeout(self._server.timeout_s):
                return await work(await asyncio.shield(self._client))
        except EnvError:
            raise
        except Exception as error:
            raise self._failed(what, error) from error

    def _break(self) -> None:
        """Mark it as broken, so that the next episode opens another, and end it."""
        self.broken = True
        self._leave.set()

    async def end(self) -> None:
        """Close it and end its program."""
        self._leave.set()
        await asyncio.wait([self._task])


async def _page(cursor: str | None, client: Any) -> Any:
    return await client.list_tools(cursor=cursor)


_OPEN: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Connection]] = WeakKeyDictionary()


@asynccontextmanager
async def connected(name: str) -> AsyncIterator[Connection]:
    """Yield a connection to a server: the one that this event loop keeps open, or one for the caller alone."""
    server = server_of(name)
    if server.per_episode:
        own = Connection(name, server)
        try:
            yield own
        finally:
            await own.end()
        return
    known = _OPEN.setdefault(asyncio.get_running_loop(), {})
    if name not in known or known[name].broken:
        known[name] = Connection(name, server)
    yield known[name]
