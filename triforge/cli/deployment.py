"""The deployment that a command talks to: options that name it, its addresses, clients of its APIs."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer import Option

from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.clients.transport import ServiceClient, UnreachableError
from triforge.config import Settings, read_document, with_assignments
from triforge.errors import InputError, UnavailableError
from triforge.supervisor.layout import places
from triforge.supervisor.supervise import ADDRESSES, is_starting

_T = TypeVar("_T")
_C = TypeVar("_C", bound=ServiceClient)

STATE = Path("var")
DOCUMENT = "train.toml"  # of the deployment that a training started, in its state folder
INTERRUPTED = 130  # exit code of a program that Ctrl-C ended

StateOption = Annotated[Path, Option("--state", help="State folder of the deployment.")]
OverlayOption = Annotated[
    Path | None, Option("--config", "-c", help="TOML laid over the deployment's own.")
]
EngineOption = Annotated[str, Option(help="sglang, vllm or local (machine.engine).")]
GpusOption = Annotated[
    str, Option(help="Number of cards for engines and learners (machine.gpus); 0 is the CPU.")
]
SetOption = Annotated[
    list[str] | None, Option("--set", help="One field, e.g. run.steps=5. Repeatable.")
]


def overrides(config: Path | None, assignments: Sequence[str] | None) -> dict[str, Any]:
    """Read a TOML document and lay single fields (`run.steps=5`) over it."""
    return with_assignments(read_document(config) if config else {}, assignments or ())


def ask_trainer(state: Path, work: Callable[[TrainerClient], Awaitable[_T]]) -> _T:
    """Do work with a client of the deployment's trainer."""
    return _ask(TrainerClient, "trainer", state, work)


def ask_pools(state: Path, work: Callable[[EnvAdapterClient], Awaitable[_T]]) -> _T:
    """Do work with a client of the deployment's env_adapter."""
    return _ask(EnvAdapterClient, "env_adapter", state, work)


def _ask(
    kind: Callable[..., _C], service: str, state: Path, work: Callable[[_C], Awaitable[_T]]
) -> _T:
    addresses = running(state, service)

    async def call() -> _T:
        key = addresses.key.get_secret_value()
        async with kind(addresses.url(service), api_key=key) as client:
            return await work(client)

    try:
        return asyncio.run(call())
    except UnreachableError as error:
        raise UnavailableError(
            f"no deployment answers; {how_to_start(state)}: {error.detail}"
        ) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def how_to_start(state: Path) -> str:
    """Say how to start a deployment."""
    if command := start_command(state):
        return f"start that of the last training in another terminal: `{command}`"
    return (
        "start one with `triforge up --config FILE`, or name that of another folder with --state, or its address in "
        "TRIFORGE_TRAINER_URL"
    )


def start_command(state: Path) -> str:
    """Return the command that starts the deployment of an ended training; empty if the folder has none."""
    if (state / ADDRESSES).is_file() or not (state / DOCUMENT).is_file():
        return ""
    return f"triforge up --config {state / DOCUMENT}{state_option(state)} --auto-ports"


def state_option(state: Path) -> str:
    """Return the option that names a folder, where it is not the usual one, for the end of a command."""
    return "" if state == STATE else f" --state {state}"


def running(state: Path, service: str = "trainer") -> Settings:
    """Return the addresses of the deployment.

    The default ports count only where the folder is not named and no deployment has run in it.

    Raises:
        InputError: a named folder does not exist.
        UnavailableError: no deployment runs in the folder, and the environment does not name the service.
    """
    if state != STATE and not state.is_dir():
        raise InputError(f"--state: given {state}, expected the folder of a `triforge up --state`")
    addresses = settings(state)
    if not names(addresses, service) and (state != STATE or (state / "logs").is_dir()):
        raise UnavailableError(no_deployment(state))
    return addresses


def no_deployment(state: Path) -> str:
    """Say that none runs in a folder, and what to do."""
    if is_starting(state):
        return f"a deployment in {state} is starting; its logs: triforge logs --follow{state_option(state)}"
    return f"no deployment runs in {state}; {how_to_start(state)}"


def names(addresses: Settings, service: str) -> bool:
    """Whether a folder or the environment gives the address of a service; else it is the default one."""
    return f"{service}_url" in addresses.model_fields_set


def settings(state: Path = STATE) -> Settings:
    """Return the addresses of the deployment that runs in `state`, or of the one that the environment names."""
    named = Settings.from_env()
    path = state / ADDRESSES
    written = json.loads(path.read_text()) if path.is_file() else {}
    return named.model_copy(
        update={k: v for k, v in written.items() if f"TRIFORGE_{k.upper()}" not in os.environ}
    )


def stores(state: Path) -> Settings:
    """Return the settings with the database and the artifacts of a deployment, whether or not it runs."""
    addresses = settings(state)
    runs = (state / ADDRESSES).is_file()
    return addresses if runs else addresses.model_copy(update=places(state, os.environ))
