"""`triforge up`: the one command that starts a deployment."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from triforge.cli.checks import demand_models
from triforge.cli.options import STATE, StateOption
from triforge.cli.terminal import console, grid, say
from triforge.config import Settings, load
from triforge.config.base import NOWHERE, by_name
from triforge.supervisor.layout import plan_layout
from triforge.supervisor.supervise import Supervisor


def up(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="TOML document that names the models.")
    ],
    state: StateOption = STATE,
    auto_ports: Annotated[bool, typer.Option("--auto-ports", help="Take free ports.")] = False,
) -> None:
    """Start every service, the workers, the engines and Valkey on this machine; Ctrl-C stops them."""
    document = load(config)
    layout = plan_layout(
        document, Settings.from_env(), config_path=config, state=state, auto_ports=auto_ports
    )
    demand_models(document, layout.settings)
    errors = Console(stderr=True)
    supervisor = Supervisor(layout, state, report=lambda text: say(f"triforge: {text}", errors))
    asyncio.run(_up(supervisor, layout.settings, state))


async def _up(supervisor: Supervisor, addresses: Settings, state: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    try:
        starting = asyncio.create_task(supervisor.start())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            starting.cancel()
            return
        await starting
        _print_addresses(addresses, state)
        watching = asyncio.create_task(supervisor.watch())
        await asyncio.wait({watching, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching  # the supervisor itself failed: say why
        watching.cancel()
    finally:
        console.print("stopping")
        await supervisor.stop()


def _print_addresses(addresses: Settings, state: Path) -> None:
    table = grid("api", "address", whole=2)
    for name, value in addresses:
        if (
            value not in ("", NOWHERE)
            and name.endswith("_url")
            and name not in ("database_url", "artifacts_url")
        ):
            table.add_row(name.removesuffix("_url"), str(value))
    for role, url in by_name(addresses.models).items():
        table.add_row(f"{role}_model", url)
    console.print(table)
    say(f"state, artifacts and logs: {state.resolve()}; Ctrl-C stops everything")
