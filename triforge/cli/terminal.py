"""What all commands share: where they print, and which deployment they ask."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from triforge.config import Settings
from triforge.supervisor.supervise import ADDRESSES

_T = TypeVar("_T")

console = Console(markup=False)  # names and reasons are text, whatever brackets they hold

StateOption = Annotated[
    Path, typer.Option("--state", help="Folder of the deployment that `triforge up` runs.")
]


def finish(work: Coroutine[object, object, _T]) -> _T:
    """Do the work of a command."""
    return asyncio.run(work)


def grid(*headings: str, whole: int = 1) -> Table:
    """A table that cuts nothing off: an id or a reason of which a part is missing is of no use.

    Args:
        headings: of its columns.
        whole: so many columns from the left are never broken into lines either; the others are where they have to be.
    """
    table = Table(*headings)
    for number, column in enumerate(table.columns):
        column.overflow, column.no_wrap = "fold", number < whole
    return table


STATE = Path("var")


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
