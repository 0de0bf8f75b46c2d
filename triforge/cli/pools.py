"""`triforge pool | task | proposal`: read and steer task pools. Most answers are JSON as the API sent it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.tree import Tree
from typer import Argument, Option

from triforge.cli.deployment import STATE, StateOption, ask_pools
from triforge.cli.terminal import console, say
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.transport import save
from triforge.environments.rows import object_of
from triforge.errors import InputError
from triforge.types import Approval, Lineage, PoolState, TaskDetail, mean_score

pool_app = typer.Typer(no_args_is_help=True)
task_app = typer.Typer(no_args_is_help=True)
proposal_app = typer.Typer(no_args_is_help=True)

_CHUNK = 2**20

PoolName = Annotated[str, Argument(help="Id or name.")]
TaskId = Annotated[str, Argument(help="Id of any version of the task.")]
ProposalId = Annotated[str, Argument(help="Id of the rewrite.")]
By = Annotated[str, Option("--by", envvar="USER", help="Your name, for the record.")]
Reason = Annotated[str, Option("--reason", help="The reason, for the record.")]

_Change = Callable[..., Awaitable[BaseModel]]  # (client, id, verb, *, by, reason)


def _print(answer: BaseModel) -> None:
    console.print_json(answer.model_dump_json())


def _add_changes(app: typer.Typer, change: _Change, **verbs: str) -> None:
    """Add the commands of changes that take an id and nothing else, each with its description."""

    def add(verb: str, about: str) -> None:
        @app.command(verb, help=about)
        def act(
            name: Annotated[str, Argument(metavar="ID", help="Id; of a pool also its name.")],
            by: By = "",
            reason: Reason = "",
            state: StateOption = STATE,
        ) -> None:
            _print(
                ask_pools(state, lambda client: change(client, name, verb, by=by, reason=reason))
            )

    for verb, about in verbs.items():
        add(verb, about)


@pool_app.command("create")
def pool_create(
    name: Annotated[str, Argument(help="Name of the pool.")],
    file: Annotated[
        Path, Option("--file", "-f", help="JSON body of POST /v1/pools, or JSONL, one task a line.")
    ],
    environment: Annotated[str, Option(help="Family, if the file names none.")] = "household",
    approval: Annotated[Approval, Option(help="Whether rewrites wait for a person.")] = "automatic",
    state: StateOption = STATE,
) -> None:
    """Create a task pool."""
    body = read_pool(file)

    async def work(client: EnvAdapterClient) -> PoolState:
        return await send_pool(client, name, body, environment=environment, approval=approval)

    _print(ask_pools(state, work))


@pool_app.command("list")
def pool_list(state: StateOption = STATE) -> None:
    """List all pools."""
    for pool in ask_pools(state, lambda client: client.pools()):
        _print(pool)


@pool_app.command("show")
def pool_show(name: PoolName, state: StateOption = STATE) -> None:
    """Show a pool: tasks by state, rewrites by state."""
    _print(ask_pools(state, lambda client: client.pool(name)))


@pool_app.command("approval")
def pool_approval(
    name: PoolName,
    approval: Annotated[Approval, Argument(help="Whether rewrites wait for a person.")],
    by: By = "",
    reason: Reason = "",
    state: StateOption = STATE,
) -> None:
    """Set whether rewrites wait for a person before they replace their tasks."""
    _print(
        ask_pools(state, lambda client: client.set_approval(name, approval, by=by, reason=reason))
    )


@pool_app.command("export")
def pool_export(
    name: PoolName,
    out: Annotated[Path, Option("--out", "-o", help="JSONL file to write.")],
    state: StateOption = STATE,
) -> None:
    """Save a pool as JSONL, whole or not at all."""
    ask_pools(state, lambda client: save(client.export(name), out))
    say(f"wrote {out}")


_add_changes(
    pool_app,
    EnvAdapterClient.change_pool,
    pause="Let runs on the pool wait at their next step.",
    resume="Let runs on the pool go on.",
    retire="Play the pool no more, for good.",
)


@task_app.command("list")
def task_list(pool: PoolName, state: StateOption = STATE) -> None:
    """List a pool's task versions: id, split, state and instruction."""

    async def work(client: EnvAdapterClient) -> None:
        async for task in client.tasks(pool):
            say(f"{task.id} {task.split} {task.state}: {task.instruction!r}")

    ask_pools(state, work)


@task_app.command("show")
def task_show(task: TaskId, state: StateOption = STATE) -> None:
    """Show one version of a task with its measurements."""
    _print(ask_pools(state, lambda client: client.task(task)))


@task_app.command("rollback")
def task_rollback(
    task: TaskId,
    to: Annotated[str, Option("--to", help="Id of the version to go back to.")],
    by: By = "",
    reason: Reason = "",
    state: StateOption = STATE,
) -> None:
    """Undo rewrites, back to an earlier version of the task."""
    _print(ask_pools(state, lambda client: client.roll_back(task, to, by=by, reason=reason)))


@task_app.command("lineage")
def task_lineage(task: TaskId, state: StateOption = STATE) -> None:
    """Show all versions of a task as a tree, with their success."""
    console.print(_tree(ask_pools(state, lambda client: client.lineage(task))), soft_wrap=True)


_add_changes(
    task_app,
    EnvAdapterClient.change_task,
    pause="Do not play the task for now.",
    resume="Play the task again.",
    retire="Play the task no more, for good.",
    pin="Never rewrite the task.",
    unpin="Allow the task to be rewritten again.",
)


def _tree(lineage: Lineage) -> Tree:
    drawn: dict[str, Tree] = {}
    for version in lineage.versions:  # parents come before their children
        task, line = version.task, _line(version)
        above = task.parent_id
        drawn[task.id] = Tree(line) if above is None else drawn[above].add(line)
    return drawn[lineage.slot]


def _line(version: TaskDetail) -> str:
    task = version.task
    measured = sum(group.measured for group in version.measurements)
    successes = sum(group.successes for group in version.measurements)
    results = [f"{successes} of {measured}"] if measured else []
    if mean := mean_score(version.measurements):
        results.append(f"mean score {mean['score']:.3f} of {mean['scored']}")
    pinned = ", pinned" if task.pinned else ""
    shown = ", ".join(results) or "not measured"
    return f"{task.id} ({task.state}{pinned}; {shown}): {task.instruction}"


@proposal_app.command("list")
def proposal_list(
    pool: PoolName,
    only: Annotated[str, Option("--only", help="pending, awaiting, accepted, rejected, ...")] = "",
    state: StateOption = STATE,
) -> None:
    """List a pool's rewrites, oldest first: id, state, direction, before and after."""
    for proposal in ask_pools(state, lambda client: client.proposals(pool, state=only or None)):
        after = proposal.instruction_after
        change = f"{proposal.instruction_before!r} -> {repr(after) if after else proposal.reason}"
        say(f"{proposal.id} {proposal.state} {proposal.direction}: {change}")


@proposal_app.command("show")
def proposal_show(proposal: ProposalId, state: StateOption = STATE) -> None:
    """Show a rewrite: diagnosis, prompt, answer, checks, both measurements, verdict and decision."""
    _print(ask_pools(state, lambda client: client.proposal(proposal)))


_add_changes(
    proposal_app,
    EnvAdapterClient.decide,
    approve="Take a rewrite that waits for a person.",
    reject="Do not take a rewrite.",
)


def read_pool(file: Path) -> dict[str, Any] | Path:
    """Return the JSON object of a file, or the path of a `.jsonl` file, which is sent as it is read.

    Raises:
        InputError: the file cannot be read, or holds no JSON object.
    """
    try:
        with file.open("rb") as opened:
            if file.suffix == ".jsonl":
                return file
            return object_of(opened.read(), f"pool file {file}")
    except OSError as error:
        raise InputError(f"pool file {file}: {error.strerror}") from None


def pool_request(
    name: str, body: dict[str, Any] | Path, *, environment: str, approval: Approval = "automatic"
) -> dict[str, Any]:
    """Return the request for a pool without the rows of a JSONL file; `environment` is for a body that names no family."""
    options = {"approval": approval} if approval != "automatic" else {}
    fields = {} if isinstance(body, Path) else body
    return {"environment": environment, **fields, "name": name, **options}


async def send_pool(
    client: EnvAdapterClient,
    name: str,
    body: dict[str, Any] | Path,
    *,
    environment: str,
    approval: Approval = "automatic",
) -> PoolState:
    """Make the pool."""
    if isinstance(body, Path):
        return await client.upload_pool(name, environment, _parts(body), approval=approval)
    return await client.create_pool(
        pool_request(name, body, environment=environment, approval=approval)
    )


async def _parts(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as opened:
        while part := await asyncio.to_thread(opened.read, _CHUNK):
            yield part
