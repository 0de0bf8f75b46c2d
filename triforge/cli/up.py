"""`triforge up`, `status`, `logs` and `doctor`: start a deployment on this machine, and look after one."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from rich.console import Console
from typer import Argument, Option

from triforge.cli.checks import demand_models
from triforge.cli.deployment import (
    STATE,
    EngineOption,
    GpusOption,
    SetOption,
    StateOption,
    how_to_start,
    no_deployment,
    running,
    settings,
)
from triforge.cli.models import newest_trained
from triforge.cli.runs import print_runs
from triforge.cli.terminal import console, grid, say
from triforge.clients.trainer import TrainerClient
from triforge.config import (
    Settings,
    load,
    merge,
    read_document,
    with_assignments,
    write_document,
)
from triforge.config.base import NOWHERE, by_name
from triforge.doctor.deployment import readiness
from triforge.doctor.installation import examine
from triforge.errors import InputError, TriforgeError
from triforge.supervisor.layout import plan_layout
from triforge.supervisor.supervise import Supervisor, demand_free

_DOCUMENT = "up.toml"  # of `up --set`, in the state folder
# what a document need not say for another trainer: its run goes on until it is stopped, evaluates nothing, and always has a round to draw
_SIDECAR: Final = {
    "run": {
        "steps": 1_000_000,
        "eval_every": 0,
        "staleness_bound": 1,
        "step_deadline_s": 7 * 86_400.0,
    },
    "env_adapter": {"episode_deadline_s": 3600.0},
}
_NEWEST = 20  # runs that `status` shows
_MARKS = {"ok": "ok     ", "warning": "warning", "bad": "BAD    "}


def up(
    config: Annotated[Path, Option("--config", "-c", help="TOML document that names the models.")],
    state: StateOption = STATE,
    engine: EngineOption = "",
    gpus: GpusOption = "",
    set_: SetOption = None,
    only: Annotated[
        Literal["", "tasks,judge"],
        Option(help="Leave out the policy: another trainer has it (docs/sidecar.md)."),
    ] = "",
    auto_ports: Annotated[bool, Option("--auto-ports", help="Take free ports.")] = False,
) -> None:
    """Start every service, the workers, the engines and Valkey on this machine; Ctrl-C stops them."""
    demand_free(state)
    machine = {"engine": engine, "gpus": gpus}
    fields = [f"machine.{name}={json.dumps(value)}" for name, value in machine.items() if value]
    given = config
    if only or [*fields, *(set_ or ())]:
        base = read_document(given)
        if only:
            base = merge(merge(_SIDECAR, base), {"env_adapter": {"played_by": "trainer"}})
        config = state / _DOCUMENT
        write_document(config, with_assignments(base, [*fields, *(set_ or ())]))
    document = load(config)
    layout = plan_layout(
        document, Settings.from_env(), config_path=config, state=state, auto_ports=auto_ports
    )
    demand_models(document, layout.settings)
    errors = Console(stderr=True)
    for line in layout.placement.lines():
        say(f"plan: {line}", errors)
    supervisor = Supervisor(layout, state, report=lambda text: say(f"triforge: {text}", errors))
    again = f"triforge up --config {given} --state {state}{' --auto-ports' * auto_ports}"
    served = "" if document.env_adapter.by_trainer else document.models.policy.path
    asyncio.run(_run(supervisor, layout.settings, state, served, again))


async def _run(
    supervisor: Supervisor, addresses: Settings, state: Path, served: str, again: str
) -> None:
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)

    async def serve() -> None:
        await supervisor.start()
        _print_addresses(addresses, state)
        if served:
            await print_policy(addresses, served, again)
        await supervisor.watch()

    serving, stopping = asyncio.create_task(serve()), asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving  # raises what ended it
        serving.cancel()
    finally:
        console.print("stopping")
        await supervisor.stop()


def _print_addresses(addresses: Settings, state: Path) -> None:
    table = grid("api", "address", whole=2)
    for name, value in addresses:
        kind = name.removesuffix("_url")
        if kind != name and kind not in ("database", "artifacts") and value not in ("", NOWHERE):
            table.add_row(kind, str(value))
    for role, url in by_name(addresses.models).items():
        table.add_row(f"{role}_model", url)
    console.print(table)
    say(f"state, artifacts and logs: {state.resolve()}; Ctrl-C stops everything")


async def print_policy(addresses: Settings, served: str, again: str) -> None:
    """Print which policy is served, and the command that serves the newest one trained here; `again` is this one's."""
    key = addresses.key.get_secret_value()
    async with TrainerClient(addresses.trainer_url, api_key=key) as trainer:
        with suppress(TriforgeError):  # the person's key may not read runs
            newest = await newest_trained(trainer)
            if newest is None or newest[1].uri == served:
                say(f"policy: {served}")
                return
            run, row = newest
            say(
                f"policy: {served}; version {row.version} of {run.id} was trained since. To serve that, and begin runs with it:"
            )
            whole = not (Path(row.uri) / "adapter_config.json").is_file()
            first = "" if whole else f"triforge run save {run.id} --to FOLDER, stop this one, "
            say(f"  {first}{again} --set models.policy.path={row.uri if whole else 'FOLDER'}")


def status(state: StateOption = STATE) -> None:
    """Show which services are ready, and the newest runs. Exit code 1 when a service is not ready."""
    addresses = running(state)
    urls = {name: addresses.url(name) for name in addresses.services}
    states = asyncio.run(readiness(urls))
    table = grid("service", "address", "state", whole=2)
    for name, url in urls.items():
        table.add_row(name, url, states[name])
    console.print(table)
    if all(shown.startswith("no answer") for shown in states.values()):
        say(f"no deployment answers; {how_to_start(state)}")
    if any(shown != "ready" for name, shown in states.items() if name != "rewriter_model"):
        raise typer.Exit(1)
    print_runs(state, newest=_NEWEST)


def logs(
    process: Annotated[str, Argument(help="Process, or the beginning of names; else all.")] = "",
    lines: Annotated[int, Option("--lines", "-n", min=0, help="Lines of each log.")] = 20,
    follow: Annotated[bool, Option("--follow", "-f", help="Print new lines, too.")] = False,
    state: StateOption = STATE,
) -> None:
    """Print the newest lines of the logs of `triforge up`; Ctrl-C ends it."""
    files = {file.stem: str(file) for file in sorted((state / "logs").glob("*.log"))}
    chosen = [path for name, path in files.items() if name.startswith(process)]
    if not chosen:
        known = ", ".join(files) or f"none: {state / 'logs'} has no logs"
        raise InputError(f"process: given {process!r}, expected one of {known}")
    options = ["--lines", str(lines), *(["-F"] if follow else [])]
    with suppress(KeyboardInterrupt):
        subprocess.run(["tail", *options, "--", *chosen], check=True)  # noqa: S603, S607


def doctor(
    config: Annotated[
        Path | None,
        Option("--config", "-c", help="Check what a start of this TOML document would meet."),
    ] = None,
    state: StateOption = STATE,
) -> None:
    """Find what keeps an installation from working, and how to mend it. Exit code 1 if there is a fault.

    With a document it checks what a start of it would meet, without one the deployment that runs.
    """
    if config is None:
        addresses = settings(state)
        named = any(name.endswith("_url") for name in addresses.model_fields_set)
        checks = examine(addresses, state=state, idle="" if named else no_deployment(state))
    else:
        checks = examine(Settings.from_env(), state=state, config=load(config), document=config)
    findings = asyncio.run(checks)
    for finding in findings:
        say(f"{_MARKS[finding.state]} {finding.check}: {finding.text}")
        if finding.mend and finding.state != "ok":
            say(f"          mend: {finding.mend}")
    faults = sum(finding.state == "bad" for finding in findings)
    warnings = sum(finding.state == "warning" for finding in findings)
    say(f"{len(findings)} checks, {faults} faults, {warnings} warnings")
    if faults:
        raise typer.Exit(1)
