"""What all commands print with."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from triforge.cli.commands import COMMANDS

_NAME: Final = "triforge"
_COMMAND: Final = re.compile(rf"(?<![\w/.-]){_NAME} (?=({'|'.join(COMMANDS)})\b)")

console = Console(markup=False)  # names and reasons are text, whatever brackets they hold


def say(text: str, to: Console = console) -> None:
    """Print a line as it is, its commands so that they can be typed as they stand."""
    text = _COMMAND.sub(lambda _: f"{program()} ", text)
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


def grid(*headings: str, whole: int = 1) -> Table:
    """A table that cuts no text off; the first `whole` columns are not broken into lines either."""
    table = Table(*headings)
    for number, column in enumerate(table.columns):
        column.overflow, column.no_wrap = "fold", number < whole
    return table
