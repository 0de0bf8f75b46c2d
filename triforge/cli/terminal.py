"""Printing: lines with commands that can be typed, tables, names of programs."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

_NAME: Final = "triforge"
_COMMAND: Final = re.compile(rf"(?<![\w/.-]){_NAME} (?=[a-z])")

console = Console(markup=False)  # names and reasons are text, brackets included


def say(text: str, to: Console = console, *, style: str = "") -> None:
    """Print a line; its commands are written so that they can be typed here."""
    text = _COMMAND.sub(lambda _: f"{program()} ", text)
    to.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def program() -> str:
    """Return the command that starts this program: its name if PATH finds it, else its path."""
    own, on_path = Path(sys.executable).with_name(_NAME), shutil.which(_NAME)
    if not own.is_file():
        return shlex.join((sys.executable, "-m", _NAME))
    if on_path and own.samefile(on_path):
        return _NAME
    here = Path.cwd()
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


def grid(*headings: str, whole: int = 1) -> Table:
    """Return a table that cuts no text off; the first `whole` columns are not broken into lines either."""
    table = Table(*headings)
    for number, column in enumerate(table.columns):
        column.overflow, column.no_wrap = "fold", number < whole
    return table


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
