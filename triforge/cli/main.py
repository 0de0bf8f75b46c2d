"""The entry point. It imports only the module of the command that was typed, because each import takes most of a second."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from typer import Option

from triforge import __version__
from triforge.cli.terminal import say
from triforge.errors import TriforgeError

# Each command by its module and its line in `triforge --help`, which is the docstring of its function.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "train": (
        "train:train_command",
        "Train a model on an environment: start what is needed, show progress, report success and the model's folder.",
    ),
    "ab": (
        "ab:ab",
        "Train with several settings on the same seeds, one run after the other, and report which settings differ.",
    ),
    "judge": ("judge:judge_app", "Measure judges, and whether training with their votes pays."),
    "eval": (
        "evaluate:evaluate",
        "Play held-out tasks with models, without training, and report how often each succeeds and where they differ.",
    ),
    "plan": (
        "plan:plan_command",
        "Show what of a training goes on which GPU, and whether it fits; starts nothing and needs no GPU.",
    ),
    "up": (
        "up:up",
        "Start every service, the workers, the engines and Valkey on this machine; Ctrl-C stops them.",
    ),
    "status": (
        "up:status",
        "Show which services are ready, and the newest runs. Exit code 1 when a service is not ready.",
    ),
    "logs": ("up:logs", "Print the newest lines of the logs of `triforge up`; Ctrl-C ends it."),
    "doctor": (
        "up:doctor",
        "Find what keeps an installation from working, and how to mend it. Exit code 1 if there is a fault.",
    ),
    "replay": (
        "runs:replay",
        "Recompute rewards, advantages, losses and gradients of a run from its record and compare; starts no engine.",
    ),
    "run": ("runs:run_app", "Start, watch, read and steer runs."),
    "pool": ("pools:pool_app", "Create, read and steer task pools."),
    "task": ("pools:task_app", "Read and steer tasks and their versions."),
    "proposal": ("pools:proposal_app", "Read and decide on rewrites of tasks."),
    "env": ("environments:env_app", "List, check and serve environments."),
    "agent": ("agent:agent_app", "Train your own agents."),
    "key": ("keys:key_app", "Create, list and revoke API keys."),
}


def main() -> None:
    """Run the command line; an error of triforge becomes a sentence and exit code 1."""
    sys.path.append(str(Path.cwd()))  # modules of the user's own
    try:
        command_line({*sys.argv, *_completed()})()
    except (TriforgeError, OSError) as error:
        detail, problems = getattr(error, "detail", str(error)), getattr(error, "problems", ())
        errors = Console(stderr=True)
        say(f"triforge: {detail}", errors)
        for problem in problems if len(problems) > 1 else ():
            say(f"  - {problem}", errors)
        sys.exit(1)


def _completed() -> list[str]:
    """Return the words that a shell asks to complete, from the variables of typer's scripts."""
    return " ".join(map(os.environ.get, ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"), ("", ""))).split()


def command_line(words: Container[str] = COMMANDS) -> typer.Typer:
    """Return the command line; a command that is not among the words is listed and not imported."""
    app = typer.Typer(name="triforge", no_args_is_help=True)
    app.callback()(_options)
    for name, (place, summary) in COMMANDS.items():
        if name not in words:
            app.command(name, help=summary)(_listed)
            continue
        module, attribute = place.split(":")
        command = getattr(importlib.import_module(f"triforge.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, help=summary)
        else:
            app.command(name)(command)
    return app


def _listed() -> None:
    """Stand for a command that was not typed."""


def _version(wanted: bool) -> None:
    if wanted:
        say(f"triforge {__version__}")
        raise typer.Exit


def _options(
    key: Annotated[str, Option("--key", help="API key; TRIFORGE_KEY is safer.")] = "",
    version: Annotated[  # noqa: ARG001 - read by its callback
        bool, Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Train a policy, a reward model and its tasks in one closed loop."""
    if key:
        os.environ["TRIFORGE_KEY"] = key
