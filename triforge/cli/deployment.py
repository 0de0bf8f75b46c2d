"""The deployment that a command asks: its addresses, and clients of its APIs."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import typer

from triforge.cli.options import STATE
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.clients.transport import ServiceClient, UnreachableError
from triforge.config import Settings
from triforge.errors import InputError, UnavailableError
from triforge.supervisor.layout import places
from triforge.supervisor.supervise import ADDRESSES

_T = TypeVar("_T")
_C = TypeVar("_C", bound=ServiceClient)

_INTERRUPTED = 130  # as shells say it of a program that Ctrl-C ended
NOTHING_RUNS = "no deployment answers; start it with `triforge up --config FILE`, or name the folder of one with --state"


def ask_trainer(state: Path, work: Callable[[TrainerClient], Awaitable[_T]]) -> _T:
    """Do work with a client of the deployment's trainer."""
    found = running(state)
    return _ask(TrainerClient, found.trainer_url, found, work)


def ask_pools(state: Path, work: Callable[[EnvAdapterClient], Awaitable[_T]]) -> _T:
    """Do work with a client of the deployment's env_adapter."""
    found = running(state)
    return _ask(EnvAdapterClient, found.env_adapter_url, found, work)


def _ask(
    kind: Callable[..., _C], url: str, found: Settings, work: Callable[[_C], Awaitable[_T]]
) -> _T:
    async def asked() -> _T:
        async with kind(url, api_key=found.key.get_secret_value()) as client:
            return await work(client)

    try:
        return asyncio.run(asked())
    except UnreachableError as error:
        raise UnavailableError(f"{NOTHING_RUNS}: {error.detail}") from None
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def running(state: Path) -> Settings:
    """The addresses of the deployment that is asked; InputError for a named folder that is not there."""
    if state != STATE and not state.is_dir():
        raise InputError(f"--state: given {state}, expected the folder of a `triforge up --state`")
    return settings(state)


def settings(state: Path = STATE) -> Settings:
    """The addresses of the deployment that runs in `state`, or of the one that the environment names."""
    found = Settings.from_env()
    path = state / ADDRESSES
    if not path.is_file():
        return found
    written = json.loads(path.read_text())
    return found.model_copy(
        update={k: v for k, v in written.items() if f"TRIFORGE_{k.upper()}" not in os.environ}
    )


def kept(state: Path) -> Settings:
    """The same of one that may not run: where it keeps what lasts."""
    found = settings(state)
    there = (state / ADDRESSES).is_file()
    return found if there else found.model_copy(update=places(state, os.environ))
