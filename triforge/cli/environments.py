"""`triforge env`: check and serve environments."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from triforge.cli.terminal import say
from triforge.environments.registry import about, family, known, load
from triforge.environments.rows import object_of, read_params
from triforge.environments.tasks import CheckedTasks, check_pool
from triforge.errors import TriforgeError
from triforge.testing.check_environment import check_environment, not_applicable
from triforge.types import GenerateSpec, PoolRequest

env_app = typer.Typer(no_args_is_help=True)

NameArgument = Annotated[str, Argument(help="Family, such as household or my_module:FAMILY.")]
GenerateOption = Annotated[str, Option(help="Options of the generator, JSON.")]
EpisodesOption = Annotated[str, Option("--options", help="Options of the episodes, JSON.")]
TasksOption = Annotated[Path | None, Option(help="JSONL file of tasks; else generated.")]


@env_app.command("list")
def env_list() -> None:
    """List the installed families, and what those lack that cannot be played here."""
    for name in known():
        try:
            described = about(load(name))
            say(f"{name:<14} {described.what if described else ''}".rstrip())
            family(name)
        except TriforgeError as error:
            say(f"  not here: {error.detail}")
    say("docs/environments.md leads to the page of each; your own is my_module:FAMILY")


@env_app.command("check")
def env_check(
    name: NameArgument,
    generate: GenerateOption = "{}",
    options: EpisodesOption = "{}",
    tasks: TasksOption = None,
    seed: Annotated[int, Option(help="Seed of tasks and episodes.")] = 0,
    count: Annotated[int, Option(help="Tasks to generate and play.")] = 3,
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
    rows = getattr(family(name), "at_a_time", 0)  # where tasks are rows of a file
    if rows and not (tasks or broken):
        spec = GenerateSpec(count=rows, at_most=True, options=object_of(generate, "--generate"))
        head = PoolRequest(
            name="check", environment=name, options=object_of(options, "--options"), generate=spec
        )
        with CheckedTasks() as checked:
            check_pool(family(name), head, (), checked)
            if checked.summary:
                say(f"note   {checked.summary}")
    say(f"{len(results)} checks, {broken} broken, {len(skipped)} do not apply")
    if broken:
        raise typer.Exit(1)


@env_app.command("serve")
def env_serve(
    name: NameArgument,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port; 0 takes a free one.")] = 8000,
    tasks: TasksOption = None,
    count: Annotated[int, Option(help="Tasks to generate.")] = 64,
    seed: Annotated[int, Option(help="Seed of the generator.")] = 0,
    generate: GenerateOption = "{}",
    options: EpisodesOption = "{}",
    sessions: Annotated[int, Option(help="Clients at a time.")] = 64,
    idle: Annotated[float, Option(help="Seconds after which a silent client is closed.")] = 900.0,
) -> None:
    """Serve a family over the OpenEnv protocol; Ctrl-C stops it."""
    arguments = {
        "name": name, "host": host, "port": port, "tasks": str(tasks or ""), "count": count, "seed": seed,
        "generate": generate, "options": options, "sessions": sessions, "idle": idle,
    }  # fmt: skip
    command = [sys.executable, "-m", "services.env_adapter", "serve", json.dumps(arguments)]
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606  the service takes this process over
