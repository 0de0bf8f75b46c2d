"""`triforge eval`: the success of models on held-out tasks, and where they differ.

A model of a deployment is measured by a run of no training steps; one behind an OpenAI-compatible endpoint is played from here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Argument, Option

from triforge.cli.deployment import (
    STATE,
    OverlayOption,
    SetOption,
    StateOption,
    ask_pools,
    ask_trainer,
    overrides,
    state_option,
)
from triforge.cli.endpoint import heldout_tasks, play
from triforge.cli.figures import (
    MODES,
    Compared,
    Played,
    compare,
    figures_of,
    measures_of,
    mode_of,
)
from triforge.cli.model_folders import model_folder
from triforge.cli.models import newest_trained, version_of
from triforge.cli.terminal import console, grid, say
from triforge.cli.watch import left_running, watch
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import RunConfig, merge, parse
from triforge.environments.rows import object_of
from triforge.environments.trainable import config_on
from triforge.errors import ConflictError, InputError, PolicyError
from triforge.event_loop import run_anywhere
from triforge.types import Params, Task

_INITIAL: Final = "initial"
_SHOWN: Final = 20  # tasks on which two models differ


def evaluate(
    pool: Annotated[str, Argument(help="Id or name of the pool.")] = "",
    model: Annotated[
        list[str] | None,
        Option(
            help="Model folder, id on the Hugging Face hub, RUN or RUN:VERSION, or initial; else the newest policy trained on the pool. Repeatable."
        ),
    ] = None,
    tasks: Annotated[int, Option(min=1, help="Held-out tasks to play.")] = 64,
    k: Annotated[int, Option(min=1, max=64, help="Play each so often, for pass@2, 4, ..., K.")] = 1,
    greedy: Annotated[bool, Option(help="Play them greedily as well, once each.")] = True,
    endpoint: Annotated[
        str,
        Option(
            help="An OpenAI-compatible endpoint, such as https://host/v1, that has --model; its key is in OPENAI_API_KEY."
        ),
    ] = "",
    env: Annotated[str, Option(help="With --endpoint: a family, in the place of a pool.")] = "",
    generate: Annotated[str, Option(help="With --env: options of its generator, JSON.")] = "{}",
    options: Annotated[str, Option(help="With --env: options of the episodes, JSON.")] = "{}",
    against: Annotated[
        Path | None, Option(help="An --out file of the same tasks, whose models are compared, too.")
    ] = None,
    name: Annotated[str, Option(help="Name of the evaluation.")] = "evaluation",
    config: OverlayOption = None,
    set_: SetOption = None,
    out: Annotated[Path | None, Option("--out", "-o", help="JSON file for the figures.")] = None,
    state: StateOption = STATE,
) -> None:
    """Play held-out tasks with models, without training, and report how often each succeeds and where they differ."""  # fmt: skip
    if not pool and not (env and endpoint):
        raise typer.BadParameter("given none, expected its id or name", param_hint="POOL")
    if endpoint and not model:
        raise typer.BadParameter("given none, expected its name there", param_hint="--model")
    only = {"steps": 0, "eval_every": 1, "eval_tasks": tasks, "eval_greedy": greedy}
    over = merge(overrides(config, set_), {"run": {**only, "eval_rollouts": k}})
    evaluated = json.loads(against.read_text())["models"] if against else []
    if endpoint:
        given = object_of(generate, "--generate"), object_of(options, "--options")
        tasks_and_config = _of_pool(pool, over, state) if pool else _of_family(env, *given, over)
        evaluated += _play_here(endpoint, model or [], *tasks_and_config)
    else:
        evaluated += _run(pool, model or [""], name, over, state)
    differences = _show(evaluated)
    if out is not None:
        document = {"models": evaluated, "differences": differences}
        out.write_text(json.dumps(document, indent=2) + "\n")


def _run(
    pool: str, models: Sequence[str], name: str, over: dict[str, Any], state: Path
) -> list[dict[str, Any]]:
    """Evaluate models of a deployment, each by a run."""
    chosen = bool(over.get("models", {}).get("policy", {}).get("path"))
    pool_id = "" if chosen or all(models) else ask_pools(state, lambda client: client.pool(pool)).id

    folder = partial(model_folder, "policy", tell=say, env="", generate={}, options={})
    named = [spec for spec in models if "/" in spec or (spec and Path(spec).is_dir())]
    folders = {spec: {"name": spec, "path": str(folder(name=spec))} for spec in named}

    async def work(client: TrainerClient) -> list[dict[str, Any]]:
        known = [folders.get(spec) or await _trained(client, spec, pool_id) for spec in models]
        found = []
        for model in known:
            found.append(await _evaluate(client, pool, name, over, model))
            export = f"triforge run export {found[-1]['run']} --out FILE{state_option(state)}"
            say(f"every step of every episode: {export}")
        served = found[-1]["model"]["path"]
        say(
            f"the deployment's policy service answers with {served} until the next run or evaluation"
        )
        return found

    return ask_trainer(state, work)


async def _trained(client: TrainerClient, spec: str, pool_id: str) -> dict[str, Any]:
    """Return a policy of a run, or the newest one trained on a pool; empty for the initial one."""
    run, _, version = spec.partition(":")
    if version and not version.isdecimal():
        raise InputError(f"--model: given {spec!r}, expected RUN:VERSION with a number")
    if run and run != _INITIAL:
        row = await version_of(client, run, "policy", int(version) if version else None)
    elif not run and pool_id and (newest := await newest_trained(client, pool_id)):
        run, row = newest[0].id, newest[1]
    else:
        return {}
    return {"name": f"{run}:{row.version}", "path": row.uri, "run": run, "version": row.version}


async def _evaluate(
    client: TrainerClient, pool: str, name: str, over: dict[str, Any], model: dict[str, Any]
) -> dict[str, Any]:
    if model:
        over = merge(over, {"models": {"policy": {"path": model["path"]}}})
    run = await client.submit(pool, name=name, config=over)
    path = run.config.get("models", {}).get("policy", {}).get("path", "")
    model = model or {"name": _INITIAL, "path": path}
    of = f"version {model['version']} of {model['run']}" if "run" in model else "not trained here"
    say(f"evaluating the policy {model['path']} ({of})")
    with left_running(run.id):
        ended = await watch(console, client, run.id)
    if ended.status != "finished":
        raise ConflictError(f"evaluation {run.id} {ended.status}: {ended.reason}")
    played = [
        Played(
            mode_of(row.group_id), row.task_id, row.instruction, row.outcome, row.score, row.error
        )
        for row in await client.all_trajectories(run.id, purpose="evaluate")
    ]
    if not played:
        raise InputError(
            "nothing was played: the pool has no held-out tasks; `heldout` of the pool's `generate` makes some, "
            'and so does "split": "heldout" of a task'
        )
    return _result(model, played) | {"run": run.id}


def _of_pool(pool: str, over: Mapping[str, Any], state: Path) -> tuple[list[Task], RunConfig]:
    """Return the held-out tasks of a pool that a run would play, and the config."""

    async def work(client: EnvAdapterClient) -> tuple[list[Task], RunConfig]:
        found = await client.pool(pool)
        config = config_on(found, {}, over)
        tasks = client.tasks(found.id, split="heldout", state="active")
        return [task async for task in tasks][: config.run.eval_tasks], config

    return ask_pools(state, work)


def _of_family(
    env: str, generate: Params, options: Params, over: Mapping[str, Any]
) -> tuple[list[Task], RunConfig]:
    """Return the held-out tasks that `triforge train` makes of a family, and the config."""
    config = parse(merge({"env_adapter": {"options": options}}, over))
    run = config.run
    return heldout_tasks(
        env, run.eval_tasks, run.seed, generate, config.env_adapter.options
    ), config


def _play_here(
    endpoint: str, models: Sequence[str], tasks: Sequence[Task], config: RunConfig
) -> list[dict[str, Any]]:
    """Evaluate models of an endpoint in this process.

    Raises:
        PolicyError: no episode was measured.
    """
    found = []
    for name in models:
        say(f"playing {len(tasks)} held-out tasks with {name} at {endpoint}")
        played = run_anywhere(play(endpoint, name, tasks, config))
        if failed := [one.error for one in played if one.error]:
            report = (
                f"{len(failed)} of {len(played)} episodes were not measured; the first: {failed[0]}"
            )
            if len(failed) == len(played):
                raise PolicyError(report)
            say(report)
        found.append(_result({"name": name, "path": endpoint}, played))
    return found


def _result(model: dict[str, Any], played: Sequence[Played]) -> dict[str, Any]:
    return {"model": model, **figures_of(played), "played": [asdict(one) for one in played]}


def _show(evaluated: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Print the figures of all models, and return how they differ from the first."""
    table = grid("model", "measure", "mean", "95 % interval", "episodes", whole=0)
    for one in evaluated:
        for mode in (mode for mode in MODES if mode in one):
            measures = measures_of(one[mode]) or {"success": ("not measured", "")}
            for name, cells in measures.items():
                episodes = str(one[mode]["episodes"])
                table.add_row(one["model"]["name"], f"{name}, {mode}", *cells, episodes)
    console.print(table)
    first, *others = ([Played(**row) for row in one["played"]] for one in evaluated)
    names = [one["model"]["name"] for one in evaluated]
    differences = []
    for name, played in zip(names[1:], others, strict=True):
        for compared in compare(first, played):
            _show_change(names[0], name, compared)
            row = {"mode": compared.mode, **asdict(compared.change), "tasks": compared.tasks}
            differences.append({"first": names[0], "second": name, **row})
    return differences


def _show_change(first: str, second: str, compared: Compared) -> None:
    """Print the difference of two models, and the tasks on which they differ most."""
    change, tasks = compared.change, compared.tasks
    gained = sum(after > before for *_, before, after in tasks)
    say(
        f"{second} against {first}, {compared.mode}: {change.word}, {change.shown}; of {change.pairs} tasks better on {gained}, "
        f"worse on {len(tasks) - gained}"
    )
    table = grid("task", first, second, whole=0)
    ranked = sorted(tasks, key=lambda row: -abs(row[3] - row[2]))[:_SHOWN]
    for _, text, before, after in sorted(ranked, key=lambda row: row[2] - row[3]):
        table.add_row(text, f"{before:.2f}", f"{after:.2f}")
    if ranked:
        console.print(table)
    if more := len(tasks) - len(ranked):
        say(f"{more} more; --out has all")
