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
DOCUMENT = "train.toml"  # of the deployment that a training started, in its state folder


NOTHING_RUNS = "no deployment answers; start it with `triforge up --config FILE`, or name the folder of one with --state"


def nothing_runs(state: Path) -> str:
    """What is said where no deployment answers."""
    if again := start_again(state):
        return f"no deployment answers; start the one that `triforge train` has left, and beside it ask again: `{again}`"
    return NOTHING_RUNS


def start_again(state: Path) -> str:
    """The command that starts the deployment of a training that has ended; empty if the folder has none."""
    if (state / ADDRESSES).is_file() or not (state / DOCUMENT).is_file():
        return ""
    return f"triforge up --config {state / DOCUMENT}{'' if state == STATE else f' --state {state}'}"


def ask_trainer(state: Path, work: Callable[[TrainerClient], Awaitable[_T]]) -> _T:
    """Do work with a client of the deployment's trainer."""
    return _ask(TrainerClient, "trainer", state, work)


def ask_pools(state: Path, work: Callable[[EnvAdapterClient], Awaitable[_T]]) -> _T:
    """Do work with a client of the deployment's env_adapter."""
    return _ask(EnvAdapterClient, "env_adapter", state, work)


def _ask(
    kind: Callable[..., _C], service: str, state: Path, work: Callable[[_C], Awaitable[_T]]
) -> _T:
    found = running(state)

    async def asked() -> _T:
        async with kind(found.url(service), api_key=found.key.get_secret_value()) as client:
            return await work(client)

    try:
        return asyncio.run(asked())
    except UnreachableError as error:
        raise UnavailableError(f"{nothing_runs(state)}: {error.detail}") from None
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
