"""`triforge eval`: the success of a model on a pool's held-out tasks, measured by a run of no training steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer import Argument, Option

from triforge.algorithms.theory import wilson
from triforge.cli.deployment import (
    STATE,
    OverlayOption,
    SetOption,
    StateOption,
    ask_pools,
    ask_trainer,
    overrides,
)
from triforge.cli.models import VersionOption, newest_trained, version_of
from triforge.cli.terminal import console, say
from triforge.cli.watch import left_running, watch
from triforge.clients.trainer import TrainerClient
from triforge.config import merge
from triforge.errors import ConflictError, InputError
from triforge.types import RunStep

MODES = ("sampled", "greedy")
_MEASURES = {"success": ("success", "low", "high"), "score": ("score", "score/low", "score/high")}


def evaluate(
    pool: Annotated[str, Argument(help="Id or name of the pool.")],
    tasks: Annotated[int, Option(min=1, help="Held-out tasks to play, once each.")] = 64,
    greedy: Annotated[bool, Option(help="Play them greedily as well.")] = True,
    run: Annotated[
        str, Option(help="Take the policy from this run; else from the newest that trained one.")
    ] = "",
    version: VersionOption = None,
    initial: Annotated[bool, Option("--initial", help="Take the initial policy.")] = False,
    name: Annotated[str, Option(help="Name of the evaluation.")] = "evaluation",
    config: OverlayOption = None,
    set_: SetOption = None,
    out: Annotated[Path | None, Option("--out", "-o", help="JSON file for the figures.")] = None,
    state: StateOption = STATE,
) -> None:
    """Play a pool's held-out tasks with a model, without training, and report how often it succeeded.

    By default the model is the newest that a run on the pool has trained.
    """
    if version is not None and not run:
        raise typer.BadParameter("given without --run, expected its run", param_hint="--version")
    only = {"steps": 0, "eval_every": 1, "eval_tasks": tasks, "eval_greedy": greedy}
    over = merge(overrides(config, set_), {"run": only})
    chosen = initial or bool(over.get("models", {}).get("policy", {}).get("path"))
    pool_id = "" if run or chosen else ask_pools(state, lambda client: client.pool(pool)).id

    async def work(client: TrainerClient) -> dict[str, Any]:
        model = await _model(client, run, version, pool_id)
        return await _evaluate(client, pool, name, over, model)

    figures = ask_trainer(state, work)
    _show(figures)
    if out is not None:
        out.write_text(json.dumps(figures, indent=2) + "\n")


async def _model(
    client: TrainerClient, run: str, version: int | None, pool_id: str
) -> dict[str, Any]:
    """Return the named version of a run, or the newest one trained on a pool; empty if there is none."""
    if run:
        row = await version_of(client, run, "policy", version)
    elif pool_id and (newest := await newest_trained(client, pool_id)):
        run, row = newest[0].id, newest[1]
    else:
        return {}
    return {"path": row.uri, "run": run, "version": row.version}


async def _evaluate(
    client: TrainerClient, pool: str, name: str, over: dict[str, Any], model: dict[str, Any]
) -> dict[str, Any]:
    if model:
        over = merge(over, {"models": {"policy": {"path": model["path"]}}})
    run = await client.submit(pool, name=name, config=over)
    model = model or {"path": run.config.get("models", {}).get("policy", {}).get("path", "")}
    of = f"version {model['version']} of {model['run']}" if "run" in model else "not trained here"
    say(f"evaluating the policy {model['path']} ({of})")
    with left_running(run.id):
        ended = await watch(console, client, run.id)
    if ended.status != "finished":
        raise ConflictError(f"evaluation {run.id} {ended.status}: {ended.reason}")
    figures = held_out(await client.steps(run.id))
    if not figures:
        raise InputError(
            "nothing was played: the pool has no held-out tasks; `heldout` of the pool's `generate` makes some, "
            'and so does "split": "heldout" of a task'
        )
    return {"model": model, "run": run.id, **figures}


def held_out(steps: list[RunStep]) -> dict[str, Any]:
    """Return the last evaluation of these steps by mode: success and mean score, each with its 95 % interval."""
    figures: dict[str, Any] = {}
    for step in steps:
        for mode in MODES:
            episodes = step.metrics.get(f"eval/{mode}_episodes")
            if episodes is None:
                continue
            success = step.metrics.get(f"eval/{mode}")  # absent when no episode was measured
            low, high = (0.0, 1.0) if success is None else wilson(success * episodes, episodes)
            figures[mode] = {
                "success": success, "low": low, "high": high, "episodes": int(episodes),
                "policy_version": step.policy_version,
            } | {
                f"score{end}": step.metrics[f"eval/{mode}_score{end}"]
                for end in ("", "/low", "/high") if f"eval/{mode}_score{end}" in step.metrics
            }  # fmt: skip
    return figures


def measures_of(row: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Format the measures of a mode that were made: mean and 95 % interval by name."""
    return {
        name: _formatted([row.get(key) for key in keys])
        for name, keys in _MEASURES.items()
        if row.get(keys[0]) is not None
    }


def _formatted(values: list[float | None]) -> tuple[str, str]:
    mean, low, high = ("-" if value is None else f"{value:.3f}" for value in values)
    return mean, "-" if "-" in (low, high) else f"{low} to {high}"


def _show(figures: dict[str, Any]) -> None:
    table = Table("held-out tasks", "measure", "mean", "95 % interval", "episodes measured")
    for mode in (mode for mode in MODES if mode in figures):
        measures = measures_of(figures[mode]) or {"success": ("not measured", "")}
        for name, cells in measures.items():
            table.add_row(mode, name, *cells, str(figures[mode]["episodes"]))
    console.print(table)
    say(f"policy: {figures['model']['path']}")
    say(f"every step of every episode: triforge run export {figures['run']} --out FILE")
