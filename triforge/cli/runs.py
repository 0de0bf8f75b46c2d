"""`triforge run`: start, watch, read and steer runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from triforge.cli.rollouts import lines
from triforge.cli.terminal import (
    STATE,
    OverlayOption,
    SetOption,
    StateOption,
    ask_trainer,
    console,
    grid,
    overrides,
    say,
)
from triforge.cli.watch import left_running, said, watch
from triforge.clients.trainer import TrainerClient
from triforge.types import RunState

run_app = typer.Typer(no_args_is_help=True, help="Runs.")


@run_app.command("start")
def run_start(
    pool: Annotated[str, typer.Argument(help="Id or name of the pool.")],
    name: Annotated[str, typer.Option(help="Name of the run.")] = "",
    config: OverlayOption = None,
    set_: SetOption = None,
    follow: Annotated[bool, typer.Option("--watch", help="Watch it at once.")] = False,
    state: StateOption = STATE,
) -> None:
    """Queue a run on a pool."""
    over = overrides(config, set_)

    async def work(client: TrainerClient) -> None:
        run = await client.submit(pool, name=name, config=over)
        say("\n".join(filter(None, (f"{run.id} {run.status}", run.algorithm))))
        if follow:
            await _watch(client, run.id)

    ask_trainer(state, work)


async def _watch(client: TrainerClient, run_id: str) -> None:
    with left_running(run_id):
        run = await watch(console, client, run_id)
    say(f"{run.id} at step {run.step} of {run.steps}: {said(run.status, run.reason)}")
    if run.status == "failed":
        raise typer.Exit(1)


RunArgument = Annotated[str, typer.Argument(help="Id of the run.")]


@run_app.command("watch")
def run_watch(run_id: RunArgument, state: StateOption = STATE) -> None:
    """Watch a run until it has ended."""
    ask_trainer(state, lambda client: _watch(client, run_id))


@run_app.command("show")
def run_show(
    run_id: RunArgument,
    step: Annotated[
        int | None, typer.Option(min=0, help="Show the rollouts of this step with their votes.")
    ] = None,
    group: Annotated[str, typer.Option(help="With --step: only those of this group.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="With --step: so many rollouts.")] = 8,
    state: StateOption = STATE,
) -> None:
    """Where a run stands, or what was played at one of its steps."""
    if step is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "step.parquet"
            ask_trainer(state, lambda client: client.export(run_id, file, step=step))
            for line in lines(file, group=group, limit=limit, width=console.width):
                say(line)
        return
    run = ask_trainer(state, lambda client: client.run(run_id))
    for name, value in _facts(run).items():
        say(f"{name:<9} {value}")


def _facts(run: RunState) -> dict[str, str]:
    """What `run show` says of a run, by what it is called."""
    return {
        "run": f"{run.id} {run.name}".rstrip(),
        "pool": run.pool_id,
        "status": said(run.status, run.reason),
        "step": f"{max(run.step, 0)} of {run.steps}",
        "algorithm": run.algorithm,
        "versions": f"policy {run.policy_version}, reward model {run.reward_version}",
    }


@run_app.command("stop")
def run_stop(run_id: RunArgument, state: StateOption = STATE) -> None:
    """Ask a run to stop."""
    run = ask_trainer(state, lambda client: client.stop(run_id))
    say(f"{run_id} {run.status}")


@run_app.command("resume")
def run_resume(run_id: RunArgument, state: StateOption = STATE) -> None:
    """Go on after the last finished step."""
    run = ask_trainer(state, lambda client: client.resume(run_id))
    say(f"{run_id} {run.status}")


@run_app.command("weights")
def run_weights(run_id: RunArgument, state: StateOption = STATE) -> None:
    """The weight versions of a run."""
    table = grid("role", "version", "repeats", "on disk", "folder")
    for row in ask_trainer(state, lambda client: client.weights(run_id)):
        repeats = "" if row.origin is None else str(row.origin)
        table.add_row(row.role, str(row.version), repeats, "yes" if row.kept else "no", row.uri)
    console.print(table)


@run_app.command("rollback")
def run_rollback(
    run_id: RunArgument,
    role: Annotated[str, typer.Option(help="policy or reward.")],
    version: Annotated[int, typer.Option(help="The version to go back to.")],
    state: StateOption = STATE,
) -> None:
    """Take a stopped run's model back to an older version, under the next number."""
    if role not in ("policy", "reward"):
        raise typer.BadParameter(f"given {role!r}, expected policy or reward", param_hint="--role")
    trained: Literal["policy", "reward"] = "policy" if role == "policy" else "reward"
    run = ask_trainer(state, lambda client: client.roll_back(run_id, trained, version))
    now = run.policy_version if role == "policy" else run.reward_version
    say(f"{run_id} {role}: version {version} serves as {now}")


@run_app.command("list")
def run_list(state: StateOption = STATE) -> None:
    """All runs, newest first."""
    print_runs(state)


def print_runs(state: Path, newest: int | None = None) -> None:
    """A table of runs, newest first."""
    table = grid("run", "name", "status", "step", "reason", whole=4)
    for run in ask_trainer(state, lambda client: client.runs(newest)):
        table.add_row(run.id, run.name, run.status, f"{run.step}/{run.steps}", run.reason)
    console.print(table)


@run_app.command("export")
def run_export(
    run_id: RunArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet file to write.")],
    state: StateOption = STATE,
) -> None:
    """Save the run's record: one Parquet row a step, enough to recompute every number."""
    ask_trainer(state, lambda client: client.export(run_id, out))
    say(f"wrote {out}")


@run_app.command("report")
def run_report(
    run_id: RunArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, .parquet or .jsonl.")],
    state: StateOption = STATE,
) -> None:
    """Save what each finished step measured: a row a step."""
    ask_trainer(state, lambda client: client.report(run_id, out))
    say(f"wrote {out}")
