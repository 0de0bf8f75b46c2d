"""`triforge env`: check and serve environments."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from triforge.cli.terminal import say
from triforge.environments.registry import family
from triforge.environments.rows import object_of, read_params
from triforge.testing.check_environment import check_environment, not_applicable

env_app = typer.Typer(no_args_is_help=True)


@env_app.command("check")
def env_check(
    name: Annotated[str, typer.Argument(help="Family, such as household or my_module:FAMILY.")],
    generate: Annotated[str, typer.Option(help="Options of the generator, JSON.")] = "{}",
    options: Annotated[str, typer.Option(help="How episodes are played, JSON.")] = "{}",
    tasks: Annotated[
        Path | None, typer.Option(help="JSONL file of tasks; without it they are generated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of tasks and episodes.")] = 0,
    count: Annotated[int, typer.Option(help="Tasks to generate and play.")] = 3,
) -> None:
    """Check whether a family keeps the contract; exit code 1 if it does not."""
    results = asyncio.run(
        check_environment(
            family(name),
            tasks=read_params(tasks) if tasks else [],
            options=object_of(options, "--options"),
            generator_options=object_of(generate, "--generate"),
            seed=seed,
            count=count,
        )
    )
    skipped = not_applicable(results)
    for result in results:
        mark = "-     " if result in skipped else "ok    " if result.passed else "BROKEN"
        say(f"{mark} {result.name}{': ' * bool(result.detail)}{result.detail}")
    broken = sum(not result.passed for result in results)
    say(f"{len(results)} checks, {broken} broken, {len(skipped)} do not apply")
    if broken:
        raise typer.Exit(1)


@env_app.command("serve")
def env_serve(
    name: Annotated[str, typer.Argument(help="Family, such as household or my_module:FAMILY.")],
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
