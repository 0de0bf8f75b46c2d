"""The commands beside those of runs, pools and keys. Each asks a service through its client; only `up` starts anything."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console

from triforge import __version__
from triforge.cli.agent import agent_app
from triforge.cli.backup import backup, restore
from triforge.cli.checks import demand_models
from triforge.cli.evaluate import evaluate
from triforge.cli.keys import key_app, tenant_app
from triforge.cli.pools import pool_app, proposal_app, task_app
from triforge.cli.runs import print_runs, run_app
from triforge.cli.terminal import (
    NOTHING_RUNS,
    STATE,
    StateOption,
    console,
    grid,
    json_object,
    running,
    say,
    settings,
)
from triforge.cli.train import train
from triforge.config import Settings, load
from triforge.config.base import NOWHERE
from triforge.doctor import Finding, examine
from triforge.doctor.services import SERVICES
from triforge.environments.registry import family
from triforge.errors import InputError, TriforgeError
from triforge.supervisor.layout import plan_layout
from triforge.supervisor.supervise import Supervisor
from triforge.testing.check_environment import check_environment, not_applicable
from triforge.types import Params

_MARKS = {"ok": "ok     ", "warning": "warning", "bad": "BAD    "}


def _show(found: Sequence[Finding]) -> None:
    """Print findings, the faults with what mends them; leaves with exit code 1 if there is a fault."""
    for finding in found:
        say(f"{_MARKS[finding.state]} {finding.check}: {finding.said}")
        if finding.mend and finding.state != "ok":
            say(f"          mend: {finding.mend}")
    bad = sum(finding.state == "bad" for finding in found)
    warnings = sum(finding.state == "warning" for finding in found)
    say(f"{len(found)} checks, {bad} faults, {warnings} warnings")
    if bad:
        raise typer.Exit(1)


env_app = typer.Typer(no_args_is_help=True, help="Environments.")


@env_app.command("check")
def env_check(
    name: Annotated[str, typer.Argument(help="Family, such as household or my_module:FAMILY.")],
    generate: Annotated[str, typer.Option(help="Options of the generator, JSON.")] = "{}",
    options: Annotated[str, typer.Option(help="How episodes are played, JSON.")] = "{}",
    tasks: Annotated[
        Path | None,
        typer.Option(help="JSONL file of tasks; without it they are generated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of tasks and episodes.")] = 0,
    count: Annotated[int, typer.Option(help="Tasks to generate and play.")] = 3,
) -> None:
    """Check whether a family keeps the contract; exit code 1 if it does not."""
    lines = tasks.read_text(encoding="utf-8").splitlines() if tasks else []
    results = asyncio.run(
        check_environment(
            family(name),
            tasks=[_params_of(json_object(line)) for line in lines if line.strip()],
            options=json_object(options),
            generator_options=json_object(generate),
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


def _params_of(row: Params) -> Params:
    inner = row.get("params")
    return inner if isinstance(inner, dict) else row


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


_NEWEST = 20  # runs that `status` shows
app = typer.Typer(
    name="triforge",
    no_args_is_help=True,
    help="Policy, reward model and tasks improve in a closed loop.",
)
app.add_typer(pool_app, name="pool")
app.add_typer(task_app, name="task")
app.add_typer(proposal_app, name="proposal")
app.add_typer(run_app, name="run")
app.add_typer(env_app, name="env")
app.add_typer(agent_app, name="agent")
app.add_typer(key_app, name="key")
app.add_typer(tenant_app, name="tenant")
app.command("train")(train)
app.command("eval")(evaluate)
app.command("backup")(backup)
app.command("restore")(restore)


def _version(asked: bool) -> None:
    if asked:
        say(f"triforge {__version__}")
        raise typer.Exit


@app.callback()
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


def main() -> None:
    """Entry point: errors of triforge become one sentence and exit code 1."""
    sys.path.append(str(Path.cwd()))  # where a module of one's own is looked for, too
    try:
        app()
    except (TriforgeError, OSError) as error:
        detail = error.detail if isinstance(error, TriforgeError) else str(error)
        problems = error.problems if isinstance(error, TriforgeError) else ()
        _complain(f"triforge: {detail}")
        for problem in problems if len(problems) > 1 else ():
            _complain(f"  - {problem}")
        sys.exit(1)


def _complain(text: str) -> None:
    say(text, Console(stderr=True))


@app.command()
def up(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="TOML document that names the models.")
    ],
    state: StateOption = STATE,
    auto_ports: Annotated[bool, typer.Option("--auto-ports", help="Take free ports.")] = False,
) -> None:
    """Start every service, the workers, the engines and Valkey on this machine; Ctrl-C stops them."""
    document = load(config)
    layout = plan_layout(
        document, Settings.from_env(), config_path=config, state=state, auto_ports=auto_ports
    )
    demand_models(document, layout.settings)
    supervisor = Supervisor(layout, state, report=lambda text: _complain(f"triforge: {text}"))
    asyncio.run(_up(supervisor, layout.settings, state))


async def _up(supervisor: Supervisor, addresses: Settings, state: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    try:
        starting = asyncio.create_task(supervisor.start())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            starting.cancel()
            return
        await starting
        _print_addresses(addresses, state)
        watching = asyncio.create_task(supervisor.watch())
        await asyncio.wait({watching, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching  # the supervisor itself failed: say why
        watching.cancel()
    finally:
        console.print("stopping")
        await supervisor.stop()


def _print_addresses(addresses: Settings, state: Path) -> None:
    table = grid("api", "address", whole=2)
    for name, value in addresses:
        if (
            value not in ("", NOWHERE)
            and name.endswith("_url")
            and name not in ("database_url", "artifacts_url")
        ):
            table.add_row(name.removesuffix("_url"), str(value))
    console.print(table)
    say(f"state, artifacts and logs: {state.resolve()}; Ctrl-C stops everything")


@app.command()
def status(state: StateOption = STATE) -> None:
    """What serves, what is ready, and the newest runs. Exit code 1 when a service is not ready."""
    if not asyncio.run(_status(running(state))):
        raise typer.Exit(1)
    print_runs(state, newest=_NEWEST)


async def _status(addresses: Settings) -> bool:
    table, all_ready = grid("service", "address", "state", whole=2), True
    names, away = [*filter(addresses.has, SERVICES)], 0
    async with httpx.AsyncClient(timeout=3.0, trust_env=False) as client:
        for name in names:
            url = str(getattr(addresses, f"{name}_url"))
            try:
                reply = await client.get(f"{url}/readyz")
                state = "ready" if reply.status_code == 200 else f"not ready: {_detail(reply)}"
            except httpx.HTTPError as error:
                state, away = f"no answer ({type(error).__name__})", away + 1
            all_ready &= state == "ready" or name == "rewriter_model"
            table.add_row(name, url, state)
    console.print(table)
    if away == len(names):
        say(NOTHING_RUNS)
    return all_ready


def _detail(reply: httpx.Response) -> str:
    try:
        return str(json.loads(reply.content).get("detail", reply.status_code))
    except ValueError:
        return str(reply.status_code)


@app.command()
def logs(
    process: Annotated[
        str, typer.Argument(help="Process, or how several begin, such as rollout; else all.")
    ] = "",
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="So many of each.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    state: StateOption = STATE,
) -> None:
    """The newest lines of the logs of `triforge up`; Ctrl-C ends it."""
    found = {file.stem: str(file) for file in sorted((state / "logs").glob("*.log"))}
    chosen = [path for name, path in found.items() if name.startswith(process)]
    if not chosen:
        known = ", ".join(found) or f"none: {state / 'logs'} has no logs"
        raise InputError(f"process: given {process!r}, expected one of {known}")
    how = ["--lines", str(lines), *(["-F"] if follow else [])]
    with suppress(KeyboardInterrupt):
        subprocess.run(["tail", *how, "--", *chosen], check=True)  # noqa: S603, S607


@app.command()
def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Before a start: the TOML document to check."),
    ] = None,
    state: StateOption = STATE,
) -> None:
    """Find what keeps an installation from working, and say how to mend it. Exit code 1 if something does.

    With a document: what a start of it would meet. Without: the deployment that runs.
    """
    if config is None:
        checks = examine(settings(state), state=state)
    else:
        addresses = Settings.from_env()
        checks = examine(addresses, state=state, config=load(config), document=config)
    _show(asyncio.run(checks))
