"""`triforge run` and `triforge replay`: start, watch, read and steer runs, recompute one from its record."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

import typer
from typer import Argument, Option

from triforge.cli.deployment import (
    STATE,
    OverlayOption,
    SetOption,
    StateOption,
    ask_trainer,
    overrides,
    running,
    stores,
)
from triforge.cli.models import VersionOption, card_of, save_model, version_of
from triforge.cli.rollouts import show
from triforge.cli.terminal import console, grid, say
from triforge.cli.watch import left_running, say_verdict, status_text, watch
from triforge.clients.trainer import TrainerClient
from triforge.types import TrainedRole, WeightsRecord

run_app = typer.Typer(no_args_is_help=True)

RunArgument = Annotated[str, Argument(help="Id of the run.")]
RoleOption = Annotated[TrainedRole, Option(help="Which model.")]
ToOption = Annotated[Path, Option("--to", help="New folder to write.")]
Kind = Literal["success", "failure", "unmeasured", "against", "truncated", "untrained"]
_KINDS: Final[Mapping[Kind, Mapping[str, str]]] = {  # filters of the API
    "success": {"outcome": "success"},
    "failure": {"outcome": "failure"},
    "unmeasured": {"outcome": "unmeasured"},
    "against": {"against": "true"},
    "truncated": {"truncated": "true"},
    "untrained": {"trained": "false"},
}


@run_app.command("start")
def run_start(
    pool: Annotated[str, Argument(help="Id or name of the pool.")],
    name: Annotated[str, Option(help="Name of the run.")] = "",
    config: OverlayOption = None,
    set_: SetOption = None,
    follow: Annotated[bool, Option("--watch", help="Watch it at once.")] = False,
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


@run_app.command("watch")
def run_watch(run_id: RunArgument, state: StateOption = STATE) -> None:
    """Watch a run until it has ended."""
    ask_trainer(state, lambda client: _watch(client, run_id))


async def _watch(client: TrainerClient, run_id: str) -> None:
    with left_running(run_id):
        run = await watch(console, client, run_id)
    say(f"{run.id} at step {run.step} of {run.steps}: {status_text(run.status, run.reason)}")
    say_verdict(run)
    if run.status == "failed":
        raise typer.Exit(1)


@run_app.command("show")
def run_show(
    run_id: RunArgument,
    step: Annotated[int | None, Option(min=0, help="Show the rollouts of this step.")] = None,
    only: Annotated[
        Kind | None,
        Option(
            help="Show such rollouts, without --step the training rollouts of the newest step that has some. against: votes "
            "against the outcome."
        ),
    ] = None,
    group: Annotated[str, Option(help="Of the rollouts: only those of this group.")] = "",
    limit: Annotated[int, Option(min=1, help="The most rollouts.")] = 8,
    state: StateOption = STATE,
) -> None:
    """Show the state of a run, or the rollouts of one of its steps."""
    if step is not None or only is not None:
        _show_rollouts(state, run_id, step, only, group, limit)
        return
    run = ask_trainer(state, lambda client: client.run(run_id))
    versions = ", ".join(f"{role} {version}" for role, version in run.versions.items())
    say_verdict(run)
    say(f"run       {run.id} {run.name}".rstrip())
    say(f"pool      {run.pool_id}")
    say(f"status    {status_text(run.status, run.reason)}")
    say(f"step      {max(run.step, 0)} of {run.steps}")
    say(f"algorithm {run.algorithm}")
    say(f"versions  {versions}")


def _show_rollouts(
    state: Path, run_id: str, step: int | None, only: Kind | None, group: str, limit: int
) -> None:
    wanted = {"group": group, "limit": "1000", **_KINDS[only or "unmeasured"]}
    wanted |= {"purpose": "train"} if step is None else {"step": str(step)}
    found = ask_trainer(state, lambda client: client.trajectories(run_id, **wanted)).items
    if step is None:
        if not found:
            say(f"no training rollout of {run_id} is {only}")
            return
        step = found[0].step
        say(f"step {step}")
    found = tuple(row for row in found if row.step == step)
    chosen = None if only is None else {row.id for row in found}
    with _exported(state, run_id, step) as file:
        show(console, file, found, chosen=chosen, group=group, limit=limit)


@contextmanager
def _exported(state: Path, run_id: str, step: int | None = None) -> Iterator[Path]:
    """Fetch the record of a run, or of one step, into a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.parquet"
        ask_trainer(state, lambda client: client.export(run_id, file, step=step))
        yield file


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
    """List the weight versions of a run: role, version, whether it is still on the disk, folder."""
    for row in ask_trainer(state, lambda client: client.weights(run_id)):
        repeats = "" if row.origin is None else f" (repeats {row.origin})"
        say(f"{row.role:<6} {row.version:>4} {'kept' if row.kept else 'gone'} {row.uri}{repeats}")


@run_app.command("save")
def run_save(
    run_id: RunArgument,
    to: ToOption,
    role: RoleOption = "policy",
    version: VersionOption = None,
    state: StateOption = STATE,
) -> None:
    """Save a model of a run as a complete Hugging Face folder, with its tokenizer and a card; adapters are merged."""

    async def work(client: TrainerClient) -> tuple[WeightsRecord, str]:
        row = await version_of(client, run_id, role, version)
        return row, card_of(await client.run(run_id), row)

    row, card = ask_trainer(state, work)
    save_model(Path(row.uri), to, card)
    say(f"wrote {to}: version {row.version} of the {role} model of {run_id}")


@run_app.command("rollback")
def run_rollback(
    run_id: RunArgument,
    role: RoleOption,
    version: Annotated[int, Option(help="The version to go back to.")],
    state: StateOption = STATE,
) -> None:
    """Take a stopped run's model back to an older version, under the next number."""
    run = ask_trainer(state, lambda client: client.roll_back(run_id, role, version))
    say(f"{run_id} {role}: version {version} serves as {run.versions[role]}")


@run_app.command("list")
def run_list(state: StateOption = STATE) -> None:
    """List all runs, newest first."""
    print_runs(state)


def print_runs(state: Path, newest: int | None = None) -> None:
    """Print a table of runs, newest first."""
    table = grid("run", "name", "status", "step", "reason", whole=4)
    for run in ask_trainer(state, lambda client: client.runs(newest)):
        table.add_row(run.id, run.name, run.status, f"{max(run.step, 0)}/{run.steps}", run.reason)
    console.print(table)


@run_app.command("export")
def run_export(
    run_id: RunArgument,
    out: Annotated[Path, Option("--out", "-o", help="Parquet file, or folder of a dataset.")],
    form: Annotated[
        Literal["parquet", "dataset"],
        Option("--format", help="One file, or a dataset of the Hugging Face hub."),
    ] = "parquet",
    state: StateOption = STATE,
) -> None:
    """Save the run's record, a row a step of an episode, from which every number can be recomputed."""
    if form == "parquet":
        ask_trainer(state, lambda client: client.export(run_id, out))
        say(f"wrote {out}")
        return
    from triforge.store import exports  # noqa: PLC0415  pyarrow is slow to import

    with _exported(state, run_id) as file:
        say(f"wrote {exports.write_dataset(file, out)} rows into {out}")


@run_app.command("report")
def run_report(
    run_id: RunArgument,
    out: Annotated[Path | None, Option("--out", "-o", help="File, .parquet or .jsonl.")] = None,
    html: Annotated[Path | None, Option("--html", help="New folder of pages.")] = None,
    pages: Annotated[
        int,
        Option(min=1, help="With --html: pages after which no further group of rollouts is begun."),
    ] = 1000,
    state: StateOption = STATE,
) -> None:
    """Save the measures of a run's finished steps, a row a step, or its pages as files that need no service."""
    if (out is None) == (html is None):
        raise typer.BadParameter("expected one of --out and --html")
    if out is not None:
        ask_trainer(state, lambda client: client.report(run_id, out))
        say(f"wrote {out}")
        return
    options = ["--run", run_id, "--to", str(html), "--pages", str(pages)]
    become(["services.dashboard", *options], running(state).environment() | dict(os.environ))


def replay(
    run: Annotated[str, Argument(help="Id of a run, or a folder of --save.")],
    step: Annotated[int | None, Option(min=1, help="Only this training step.")] = None,
    what_if: Annotated[
        list[str] | None,
        Option(
            help="Show the effect of another value, e.g. algorithm.overrides.lam=1. Repeatable."
        ),
    ] = None,
    credit_only: Annotated[bool, Option("--credit-only", help="Rewards and advantages.")] = False,
    save: Annotated[Path | None, Option(help="Copy record and weights to a new folder.")] = None,
    state: StateOption = STATE,
) -> None:
    """Recompute rewards, advantages, losses and gradients of a run from its record and compare; starts no engine.

    Exit code 1 if something differs by more than rounding.
    """
    options = [] if step is None else ["--step", str(step)]
    options += [part for field in what_if or () for part in ("--what-if", field)]
    options += ["--credit-only"] if credit_only else []
    options += ["--save", str(save)] if save else []
    addresses = stores(state)
    places = {
        "TRIFORGE_DATABASE_URL": addresses.database_url,
        "TRIFORGE_ARTIFACTS_URL": addresses.artifacts_url,
    }
    threads = {"OMP_NUM_THREADS": "1"}  # as learners of `triforge up`, for the same order of sums
    become(["services.trainer", "replay", run, *options], threads | dict(os.environ) | places)


def become(module: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process with a Python module and its arguments."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", *module], environment)  # noqa: S606
