"""What all commands share: where they print, and which deployment they ask."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.clients.transport import ServiceClient, UnreachableError
from triforge.config import Settings, read_document, with_assignments
from triforge.errors import InputError, UnavailableError
from triforge.supervisor.supervise import ADDRESSES
from triforge.types import Params

_T = TypeVar("_T")
_C = TypeVar("_C", bound=ServiceClient)

_NAME: Final = "triforge"
COMMAND: Final = re.compile(
    rf"(?<![\w/.-]){_NAME} (?=(agent|backup|doctor|env|eval|key|logs|pool|proposal|restore|run|status|task|tenant|train|up)\b)"
)
_INTERRUPTED = 130  # as shells say it of a program that Ctrl-C ended

console = Console(markup=False)  # names and reasons are text, whatever brackets they hold

StateOption = Annotated[
    Path, typer.Option("--state", help="Folder of the deployment that `triforge up` runs.")
]
OverlayOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML laid over the deployment's own.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="One field, e.g. run.steps=5. Repeatable.")
]


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
        client = kind(url, api_key=found.key.get_secret_value())
        try:
            return await work(client)
        finally:
            await client.close()

    try:
        return asyncio.run(asked())
    except UnreachableError as error:
        raise UnavailableError(f"{NOTHING_RUNS}: {error.detail}") from None
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def say(text: str, to: Console = console) -> None:
    """Print a line as it is, its commands so that they can be typed as they stand."""
    text = COMMAND.sub(lambda _: f"{program()} ", text)
    to.print(text, markup=False, highlight=False, soft_wrap=True)


def program() -> str:
    """How this command line is started again: by its name where PATH finds it, else by its path."""
    own, found = Path(sys.executable).with_name(_NAME), shutil.which(_NAME)
    if not own.is_file():
        return shlex.join((sys.executable, "-m", _NAME))
    if found and own.samefile(found):
        return _NAME
    here = Path.cwd()
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


def overrides(config: Path | None, assignments: Sequence[str] | None) -> dict[str, Any]:
    """A TOML document with single fields (`run.steps=5`) laid over it."""
    return with_assignments(read_document(config) if config else {}, assignments or ())


def json_object(text: str) -> Params:
    """A JSON object as an option gives it; InputError if it is none."""
    try:
        return TypeAdapter(Params).validate_json(text)
    except ValidationError:
        raise InputError(f"given {text!r}, expected a JSON object such as {{}}") from None


def grid(*headings: str, whole: int = 1) -> Table:
    """A table that cuts no text off; the first `whole` columns are not broken into lines either."""
    table = Table(*headings)
    for number, column in enumerate(table.columns):
        column.overflow, column.no_wrap = "fold", number < whole
    return table


STATE = Path("var")
NOTHING_RUNS = "no deployment answers; start it with `triforge up --config FILE`, or name the folder of one with --state"


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
