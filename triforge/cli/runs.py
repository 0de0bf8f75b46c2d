"""`triforge run`: start, watch, read and steer runs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from triforge.cli.deployment import ask_trainer, running
from triforge.cli.models import save_model, version_of
from triforge.cli.options import STATE, OverlayOption, SetOption, StateOption, overrides
from triforge.cli.publish import private, write
from triforge.cli.rollouts import show
from triforge.cli.terminal import console, grid, say
from triforge.cli.watch import left_running, said, watch
from triforge.clients.trainer import TrainerClient
from triforge.types import RunState, RunStep, TrainedRole, WeightsRecord

run_app = typer.Typer(no_args_is_help=True)


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
            show(console, file, group=group, limit=limit)
        return
    run = ask_trainer(state, lambda client: client.run(run_id))
    say(f"run       {run.id} {run.name}".rstrip())
    say(f"pool      {run.pool_id}")
    say(f"status    {said(run.status, run.reason)}")
    say(f"step      {max(run.step, 0)} of {run.steps}")
    say(f"algorithm {run.algorithm}")
    say("versions  " + ", ".join(f"{role} {version}" for role, version in run.versions.items()))
    newest = ask_trainer(state, lambda client: client.steps(run_id, after=max(-1, run.step - 1)))
    if tops := levels_of(newest):
        say(f"levels    {', '.join(f'{kind} {top:g}' for kind, top in tops.items())}")


def levels_of(steps: list[RunStep]) -> dict[str, float]:
    """The top of each window of difficulty levels at the last of some steps, by kind."""
    found = steps[-1].metrics.items() if steps else ()
    named = {name.partition("/")[::2]: top for name, top in sorted(found)}
    return {kind or "all": top for (name, kind), top in named.items() if name == "level"}


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
    """The weight versions of a run: role, version, whether it is still on the disk, folder."""
    for row in ask_trainer(state, lambda client: client.weights(run_id)):
        repeats = "" if row.origin is None else f" (repeats {row.origin})"
        say(f"{row.role:<6} {row.version:>4} {'kept' if row.kept else 'gone'} {row.uri}{repeats}")


@run_app.command("save")
def run_save(
    run_id: RunArgument,
    to: Annotated[Path, typer.Option("--to", help="Folder to write.")],
    role: Annotated[TrainedRole, typer.Option(help="Which model.")] = "policy",
    version: Annotated[
        int | None, typer.Option(help="Which of its versions; the newest if not given.")
    ] = None,
    state: StateOption = STATE,
) -> None:
    """Save a model of a run as a complete Hugging Face folder, with its tokenizer; adapters are merged."""
    row = ask_trainer(state, lambda client: version_of(client, run_id, role, version))
    save_model(Path(row.uri), to)
    say(f"wrote {to}: version {row.version} of the {role} model of {run_id}")


@run_app.command("publish-hf")
def run_publish_hf(
    run_id: RunArgument,
    to: Annotated[Path, typer.Option("--to", help="New folder of both repositories.")],
    repo: Annotated[
        str, typer.Option(help="OWNER/NAME on the hub; the dataset is NAME-rollouts.")
    ] = "",
    role: Annotated[TrainedRole, typer.Option(help="Which model.")] = "policy",
    version: Annotated[
        int | None, typer.Option(help="Which of its versions; the newest if not given.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the folder, send nothing.")
    ] = False,
    state: StateOption = STATE,
) -> None:
    """Write a model of a run with its card, and the rollouts as a dataset, as the Hugging Face hub has them, and push both as private."""
    if not dry_run and "/" not in repo:
        raise typer.BadParameter("expected --repo OWNER/NAME, or --dry-run")

    push = None if dry_run else private(repo)

    async def read(client: TrainerClient) -> tuple[RunState, list[RunStep], WeightsRecord]:
        row = await version_of(client, run_id, role, version)
        await client.export(run_id, record)
        return await client.run(run_id), await client.steps(run_id), row

    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run.parquet"
        run, steps, row = ask_trainer(state, read)
        write(to, run, steps, row, record)
    say(f"wrote {to}: version {row.version} of the {role} model of {run_id}, and its rollouts")
    if push is not None:
        push(to)
        say(f"pushed {repo} and {repo}-rollouts")


@run_app.command("rollback")
def run_rollback(
    run_id: RunArgument,
    role: Annotated[TrainedRole, typer.Option(help="Which model.")],
    version: Annotated[int, typer.Option(help="The version to go back to.")],
    state: StateOption = STATE,
) -> None:
    """Take a stopped run's model back to an older version, under the next number."""
    run = ask_trainer(state, lambda client: client.roll_back(run_id, role, version))
    say(f"{run_id} {role}: version {version} serves as {run.versions[role]}")


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
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Parquet file to write; with another --format a new folder."
        ),
    ],
    form: Annotated[
        Literal["parquet", "dataset"],
        typer.Option("--format", help="One file, or a dataset of the Hugging Face hub."),
    ] = "parquet",
    state: StateOption = STATE,
) -> None:
    """Save the run's record: one Parquet row a step, enough to recompute every number; or what was played, for others."""
    if form == "parquet":
        ask_trainer(state, lambda client: client.export(run_id, out))
        say(f"wrote {out}")
        return
    from triforge.store import exports  # noqa: PLC0415  pyarrow is slow to import

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.parquet"
        ask_trainer(state, lambda client: client.export(run_id, file))
        say(f"wrote {exports.write_dataset(file, out)} rows into {out}")


@run_app.command("report")
def run_report(
    run_id: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File of its steps, .parquet or .jsonl.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="New folder of its dashboard pages, to be sent.")
    ] = None,
    pages: Annotated[int, typer.Option(min=1, help="With --html: at most so many.")] = 1000,
    state: StateOption = STATE,
) -> None:
    """Save what a run's finished steps measured, a row a step, or its pages as files that need no service."""
    if (out is None) == (html is None):
        raise typer.BadParameter("expected one of --out and --html")
    if out is not None:
        ask_trainer(state, lambda client: client.report(run_id, out))
        say(f"wrote {out}")
    if html is not None:
        command = [sys.executable, "-m", "services.dashboard", "--run", run_id]
        command += ["--to", str(html), "--pages", str(pages)]
        given = running(state).environment() | dict(os.environ)
        os.execve(sys.executable, command, given)  # noqa: S606  the service takes this process over
