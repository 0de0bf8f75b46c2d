"""`triforge pool | task | proposal`: what people ask and change of task pools. Answers are JSON as the API gave it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.tree import Tree

from triforge.cli import pool_file
from triforge.cli.deployment import ask_pools
from triforge.cli.options import STATE, StateOption
from triforge.cli.terminal import console, say
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.transport import save
from triforge.types import Approval, Lineage, PoolState, TaskDetail, mean_score

_Change = Callable[..., Awaitable[BaseModel]]  # (client, id, verb, *, by, reason)

pool_app = typer.Typer(no_args_is_help=True)
task_app = typer.Typer(no_args_is_help=True)
proposal_app = typer.Typer(no_args_is_help=True)

Subject = Annotated[str, typer.Argument(metavar="ID", help="Id; of a pool also its name.")]
PoolName = Annotated[str, typer.Argument(help="Id or name.")]
TaskId = Annotated[str, typer.Argument(help="Id of any version of the task.")]
ProposalId = Annotated[str, typer.Argument(help="Id of the rewrite.")]
By = Annotated[str, typer.Option("--by", envvar="USER", help="Who asks for it, for the record.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the record.")]


def _print(answer: BaseModel) -> None:
    console.print_json(answer.model_dump_json())


def _verb(app: typer.Typer, change: _Change, verb: str, help_: str) -> None:
    """Add the command of a change that takes an id and nothing else."""

    @app.command(verb, help=help_)
    def act(name: Subject, by: By = "", reason: Reason = "", state: StateOption = STATE) -> None:
        _print(ask_pools(state, lambda client: change(client, name, verb, by=by, reason=reason)))


# ---- pools ----


@pool_app.command("create")
def pool_create(
    name: Annotated[str, typer.Argument(help="Name of the pool.")],
    file: Annotated[
        Path,
        typer.Option(
            "--file", "-f", help="JSON body of POST /v1/pools, or JSONL, one task a line."
        ),
    ],
    environment: Annotated[
        str, typer.Option(help="Family, or path of one, of the tasks of a file that names none.")
    ] = "household",
    approval: Annotated[
        Approval, typer.Option(help="Whether rewrites wait for a person.")
    ] = "automatic",
    state: StateOption = STATE,
) -> None:
    """Create a task pool."""
    body = pool_file.read(file)

    async def work(client: EnvAdapterClient) -> PoolState:
        return await pool_file.send(client, name, body, environment=environment, approval=approval)

    _print(ask_pools(state, work))


@pool_app.command("list")
def pool_list(state: StateOption = STATE) -> None:
    """All pools."""
    for pool in ask_pools(state, lambda client: client.pools()):
        _print(pool)


@pool_app.command("show")
def pool_show(name: PoolName, state: StateOption = STATE) -> None:
    """One pool: tasks by state, proposals by state."""
    _print(ask_pools(state, lambda client: client.pool(name)))


_verb(
    pool_app, EnvAdapterClient.change_pool, "pause", "Let runs on the pool wait at their next step."
)
_verb(pool_app, EnvAdapterClient.change_pool, "resume", "Let runs on the pool go on.")
_verb(pool_app, EnvAdapterClient.change_pool, "retire", "Play the pool no more, for good.")


@pool_app.command("approval")
def pool_approval(
    name: PoolName,
    approval: Annotated[Approval, typer.Argument(help="Whether rewrites wait for a person.")],
    by: By = "",
    reason: Reason = "",
    state: StateOption = STATE,
) -> None:
    """Say whether rewrites wait for a person before they replace their tasks."""
    _print(
        ask_pools(state, lambda client: client.set_approval(name, approval, by=by, reason=reason))
    )


@pool_app.command("export")
def pool_export(
    name: PoolName,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSONL file to write.")],
    state: StateOption = STATE,
) -> None:
    """Save a pool as JSONL, whole or not at all."""
    ask_pools(state, lambda client: save(client.export(name), out))
    say(f"wrote {out}")


# ---- tasks ----


@task_app.command("list")
def task_list(pool: PoolName, state: StateOption = STATE) -> None:
    """A pool's task versions: id, split, state and instruction."""

    async def work(client: EnvAdapterClient) -> None:
        async for task in client.tasks(pool):
            say(f"{task.id} {task.split} {task.state}: {task.instruction!r}")

    ask_pools(state, work)


@task_app.command("show")
def task_show(task: TaskId, state: StateOption = STATE) -> None:
    """One version of a task with its measurements."""
    _print(ask_pools(state, lambda client: client.task(task)))


_verb(task_app, EnvAdapterClient.change_task, "pause", "Do not play the task for now.")
_verb(task_app, EnvAdapterClient.change_task, "resume", "Play the task again.")
_verb(task_app, EnvAdapterClient.change_task, "retire", "Play the task no more, for good.")
_verb(task_app, EnvAdapterClient.change_task, "pin", "Never rewrite the task.")
_verb(task_app, EnvAdapterClient.change_task, "unpin", "Allow the task to be rewritten again.")


@task_app.command("rollback")
def task_rollback(
    task: TaskId,
    to: Annotated[str, typer.Option("--to", help="Id of the version to go back to.")],
    by: By = "",
    reason: Reason = "",
    state: StateOption = STATE,
) -> None:
    """Undo rewrites, back to an earlier version of the task."""
    _print(ask_pools(state, lambda client: client.roll_back(task, to, by=by, reason=reason)))


@task_app.command("lineage")
def task_lineage(task: TaskId, state: StateOption = STATE) -> None:
    """All versions of a task as a tree, with how they went."""
    console.print(_tree(ask_pools(state, lambda client: client.lineage(task))), soft_wrap=True)


def _tree(lineage: Lineage) -> Tree:
    versions = {version.task.id: version for version in lineage.versions}
    drawn: dict[str, Tree] = {}
    for name, version in versions.items():  # parents stand before their children
        parent = version.task.parent_id
        line = _line(version)
        drawn[name] = Tree(line) if parent is None else drawn[parent].add(line)
    return drawn[lineage.slot]


def _line(version: TaskDetail) -> str:
    task = version.task
    measured = sum(group.measured for group in version.measurements)
    successes = sum(group.successes for group in version.measurements)
    pinned = ", pinned" if task.pinned else ""
    went = [f"{successes} of {measured}"] if measured else []
    if found := mean_score(version.measurements):
        went.append(f"mean score {found['score']:.3f} of {found['scored']}")
    said = ", ".join(went) or "not measured"
    return f"{task.id} ({task.state}{pinned}; {said}): {task.instruction}"


# ---- rewrites ----


@proposal_app.command("list")
def proposal_list(
    pool: PoolName,
    only: Annotated[
        str, typer.Option("--only", help="pending, awaiting, accepted, rejected, ...")
    ] = "",
    state: StateOption = STATE,
) -> None:
    """A pool's rewrites, oldest first: id, state, direction, before and after."""
    for found in ask_pools(state, lambda client: client.proposals(pool, state=only or None)):
        after = repr(found.instruction_after) if found.instruction_after else found.reason
        say(f"{found.id} {found.state} {found.direction}: {found.instruction_before!r} -> {after}")


@proposal_app.command("show")
def proposal_show(proposal: ProposalId, state: StateOption = STATE) -> None:
    """A rewrite: diagnosis, prompt, answer, checks, both measurements, verdict, and who decided."""
    _print(ask_pools(state, lambda client: client.proposal(proposal)))


_verb(proposal_app, EnvAdapterClient.decide, "approve", "Take a rewrite that waits for a person.")
_verb(proposal_app, EnvAdapterClient.decide, "reject", "Do not take a rewrite.")
