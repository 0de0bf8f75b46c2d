"""`triforge env`: environments by themselves, without a deployment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

env_app = typer.Typer(no_args_is_help=True, help="Environments.")


@env_app.callback()
def _group() -> None:
    """Keep `serve` a command of its own name, even while it is the only one."""


@env_app.command("serve")
def env_serve(
    name: Annotated[str, typer.Argument(help="Family, such as household.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    tasks: Annotated[
        Path | None, typer.Option(help="JSONL file of tasks; without it they are generated.")
    ] = None,
    count: Annotated[int, typer.Option(help="Tasks to generate.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 0,
    generate: Annotated[str, typer.Option(help="Options of the generator, JSON.")] = "{}",
    options: Annotated[str, typer.Option(help="How episodes are played, JSON.")] = "{}",
    sessions: Annotated[int, typer.Option(help="Clients at a time.")] = 64,
    idle: Annotated[float, typer.Option(help="Seconds until a silent client is let go.")] = 900.0,
) -> None:
    """Serve a family over the OpenEnv protocol; Ctrl-C stops it."""
    command = [sys.executable, "-m", "services.env_adapter", "serve", name, "--host", host]
    command += ["--port", str(port), "--count", str(count), "--seed", str(seed)]
    command += ["--generate", generate, "--options", options]
    command += ["--sessions", str(sessions), "--idle", str(idle)]
    command += ["--tasks", str(tasks)] if tasks else []
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606  the service takes this process over
