"""The entry point. Of the commands only the one that is typed is imported; most of a second goes into each of the others."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Container
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from triforge import __version__
from triforge.cli.commands import COMMANDS
from triforge.cli.terminal import say
from triforge.errors import TriforgeError


def main() -> None:
    """Entry point: errors of triforge become one sentence and exit code 1."""
    sys.path.append(str(Path.cwd()))  # where a module of one's own is looked for, too
    try:
        command_line({*sys.argv, *_completed()})()
    except (TriforgeError, OSError) as error:
        detail = error.detail if isinstance(error, TriforgeError) else str(error)
        problems = error.problems if isinstance(error, TriforgeError) else ()
        errors = Console(stderr=True)
        say(f"triforge: {detail}", errors)
        for problem in problems if len(problems) > 1 else ():
            say(f"  - {problem}", errors)
        sys.exit(1)


def _completed() -> list[str]:
    """The words that a shell asks to complete, in the variables of typer's scripts."""
    return " ".join(map(os.environ.get, ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"), ("", ""))).split()


def command_line(words: Container[str] = COMMANDS) -> typer.Typer:
    """The command line; a command that is not among the words is listed and not imported."""
    app = typer.Typer(name="triforge", no_args_is_help=True)
    app.callback()(_options)
    for name, (place, summary) in COMMANDS.items():
        if name not in words:
            app.command(name, help=summary)(_listed)
            continue
        module, function = place.split(":")
        found = getattr(importlib.import_module(f"triforge.cli.{module}"), function)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, help=summary)
        else:
            app.command(name)(found)
    return app


def _listed() -> None:
    """Stands for a command that nobody has typed."""


def _version(asked: bool) -> None:
    if asked:
        say(f"triforge {__version__}")
        raise typer.Exit


def _options(
    key: Annotated[
        str,
        typer.Option("--key", help="API key; better in TRIFORGE_KEY, which no process list shows."),
    ] = "",
    version: Annotated[  # noqa: ARG001 - read by its callback
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Policy, reward model and tasks improve in a closed loop."""
    if key:
        os.environ["TRIFORGE_KEY"] = key
