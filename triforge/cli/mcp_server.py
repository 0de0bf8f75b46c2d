"""`triforge mcp`: pools, runs and their reports as tools of an MCP server, for agents that run triforge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from triforge.cli.deployment import NOTHING_RUNS, running
from triforge.cli.options import STATE, StateOption
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.clients.transport import UnreachableError
from triforge.config import Settings
from triforge.errors import ConfigError, TriforgeError, install_command

_C = TypeVar("_C", EnvAdapterClient, TrainerClient)
Record = dict[str, Any]


def serve(state: StateOption = STATE) -> None:
    """Serve pools, runs and reports of a deployment as tools, over standard input and output, until that is closed."""
    server(running(state)).run("stdio")


def server(found: Settings) -> Any:
    """The server of a deployment; a `ConfigError` that names the command where the extra is not installed."""
    try:
        from mcp.server import MCPServer  # noqa: PLC0415  an extra
    except ImportError:
        raise ConfigError(
            f"`triforge mcp` needs the package mcp: {install_command('mcp')}"
        ) from None

    made = MCPServer("triforge", instructions="Pools hold tasks; runs train a policy on a pool.")
    tools = Tools(found)
    for name in vars(Tools):
        if not name.startswith("_"):
            made.add_tool(getattr(tools, name))
    return made


class Tools:
    """One method a tool; its docstring is what an agent reads."""

    def __init__(self, found: Settings) -> None:
        self._found = found

    async def list_pools(self) -> list[Record]:
        """All pools, with their tasks and rewrites by state."""
        return _plain(await self._pools(lambda client: client.pools()))

    async def show_pool(self, pool: str) -> Record:
        """One pool, by its id or name."""
        return _record(await self._pools(lambda client: client.pool(pool)))

    async def list_runs(self, newest: int = 20) -> list[Record]:
        """The newest runs."""
        return _plain(await self._runs(lambda client: client.runs(newest)))

    async def show_run(self, run: str) -> Record:
        """Where a run stands, by its id: status, step, versions, and the reason if it failed."""
        return _record(await self._runs(lambda client: client.run(run)))

    async def report(self, run: str, after: int = -1) -> list[Record]:
        """What each finished step of a run measured, from the one after `after` on."""
        return _plain(await self._runs(lambda client: client.steps(run, after=after)))

    async def start_run(self, pool: str, name: str = "", config: Record | None = None) -> Record:
        """Queue a run on a pool; `config` overlays the deployment's document: {"run": {"steps": 20}}."""
        return _record(
            await self._runs(lambda client: client.submit(pool, name=name, config=config))
        )

    async def stop_run(self, run: str) -> Record:
        """Have a run stop after its step; asked again, at once."""
        return _record(await self._runs(lambda client: client.stop(run)))

    async def resume_run(self, run: str) -> Record:
        """Have a run that was stopped or has failed go on from its last finished step."""
        return _record(await self._runs(lambda client: client.resume(run)))

    async def _pools(self, work: Callable[[EnvAdapterClient], Awaitable[Any]]) -> Any:
        key = self._found.key.get_secret_value()
        return await _asked(EnvAdapterClient(self._found.env_adapter_url, api_key=key), work)

    async def _runs(self, work: Callable[[TrainerClient], Awaitable[Any]]) -> Any:
        key = self._found.key.get_secret_value()
        return await _asked(TrainerClient(self._found.trainer_url, api_key=key), work)


async def _asked(client: _C, work: Callable[[_C], Awaitable[Any]]) -> Any:
    """Do the work; what goes wrong is said to the agent in the service's own sentence."""
    from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415  an extra

    try:
        async with client:
            return await work(client)
    except UnreachableError as error:
        raise ToolError(f"{NOTHING_RUNS}: {error.detail}") from None
    except TriforgeError as error:
        raise ToolError(error.detail) from None


def _record(found: BaseModel) -> Record:
    return found.model_dump(mode="json")


def _plain(found: Sequence[BaseModel]) -> list[Record]:
    return [_record(one) for one in found]
