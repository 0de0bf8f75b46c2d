"""`triforge status` and `triforge logs`: what runs, and what it says."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import httpx
import typer

from triforge.cli.deployment import nothing_runs, running
from triforge.cli.options import STATE, StateOption
from triforge.cli.runs import print_runs
from triforge.cli.terminal import console, grid, say
from triforge.errors import InputError

_NEWEST = 20  # runs that `status` shows


def status(state: StateOption = STATE) -> None:
    """What serves, what is ready, and the newest runs. Exit code 1 when a service is not ready."""
    if not asyncio.run(_status(state)):
        raise typer.Exit(1)
    print_runs(state, newest=_NEWEST)


async def _status(folder: Path) -> bool:
    addresses = running(folder)
    table, all_ready = grid("service", "address", "state", whole=2), True
    names, away = addresses.services, 0
    async with httpx.AsyncClient(timeout=3.0, trust_env=False) as client:
        for name in names:
            url = addresses.url(name)
            try:
                reply = await client.get(f"{url}/readyz")
                state = "ready" if reply.status_code == 200 else f"not ready: {_detail(reply)}"
            except httpx.HTTPError as error:
                state, away = f"no answer ({type(error).__name__})", away + 1
            all_ready &= state == "ready" or name == "rewriter_model"
            table.add_row(name, url, state)
    console.print(table)
    if away == len(names):
        say(nothing_runs(folder))
    return all_ready


def _detail(reply: httpx.Response) -> str:
    try:
        return str(json.loads(reply.content).get("detail", reply.status_code))
    except ValueError:
        return str(reply.status_code)


def logs(
    process: Annotated[
        str, typer.Argument(help="Process, or how several begin, such as rollout; else all.")
    ] = "",
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="So many of each.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    state: StateOption = STATE,
) -> None:
    """The newest lines of the logs of `triforge up`; Ctrl-C ends it."""
    found = {file.stem: str(file) for file in sorted((state / "logs").glob("*.log"))}
    chosen = [path for name, path in found.items() if name.startswith(process)]
    if not chosen:
        known = ", ".join(found) or f"none: {state / 'logs'} has no logs"
        raise InputError(f"process: given {process!r}, expected one of {known}")
    how = ["--lines", str(lines), *(["-F"] if follow else [])]
    with suppress(KeyboardInterrupt):
        subprocess.run(["tail", *how, "--", *chosen], check=True)  # noqa: S603, S607
