"""`triforge train`: a model and an environment in, a trained model out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from triforge.cli.deployment import start_again
from triforge.cli.evaluate import MODES
from triforge.cli.models import initial_policy
from triforge.cli.options import STATE, OverlayOption, SetOption, StateOption
from triforge.cli.terminal import console, say
from triforge.cli.training import Trained
from triforge.cli.training import train as run_training
from triforge.cli.watch import said
from triforge.config import with_assignments
from triforge.environments.rows import object_of

_SCORE = ("score", "score/low", "score/high")


def train(
    model: Annotated[
        str,
        typer.Option(help="Model folder, id on the Hugging Face hub, or tiny (made on the spot)."),
    ] = "",
    env: Annotated[str, typer.Option(help="Environment family, such as household.")] = "",
    preset: Annotated[str, typer.Option(help="Algorithm; grpo if there is no reward model.")] = "",
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps.")] = None,
    reward_model: Annotated[str, typer.Option(help="For presets with votes; as --model.")] = "",
    rewriter_model: Annotated[str, typer.Option(help="To have tasks rewritten; as --model.")] = "",
    generate: Annotated[str, typer.Option(help="Options of the task generator, JSON.")] = "{}",
    options: Annotated[str, typer.Option(help="How episodes are played, JSON.")] = "{}",
    data: Annotated[Path | None, typer.Option(help="Generator's option `data`: a file.")] = None,
    reward: Annotated[str, typer.Option(help="Option `reward`: MODULE:NAME of a function.")] = "",
    tasks: Annotated[
        int | None,
        typer.Option(min=1, help="Training tasks to generate; else 64, or what the data have."),
    ] = None,
    heldout: Annotated[
        int | None,
        typer.Option(min=0, help="Held-out tasks to generate; else 64, or a fifth of the data."),
    ] = None,
    pool: Annotated[str, typer.Option(help="A pool that exists, instead of a new one.")] = "",
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Tasks of the new pool: JSON or JSONL.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of tasks and run.")] = None,
    colocate: Annotated[
        bool | None, typer.Option(help="Engines and learners take turns on one card.")
    ] = None,
    config: OverlayOption = None,
    set_: SetOption = None,
    resume: Annotated[
        str, typer.Option(help="A run of this state folder to go on with, instead of a new one.")
    ] = "",
    state: StateOption = STATE,
) -> None:
    """Train a model on an environment: start what it takes, show progress, say how it ended and where the model lies.

    A deployment that runs in the state folder is used. Ctrl-C stops the run and whatever was started.
    """
    if not resume and not (model or config):
        raise typer.BadParameter("given nothing, expected a model", param_hint="--model")
    if not resume and not (env or pool):
        raise typer.BadParameter("given nothing, expected a family", param_hint="--env")
    trained = run_training(
        model, env, preset=preset, steps=steps, reward_model=reward_model, rewriter_model=rewriter_model,
        generate=object_of(generate, "--generate"), options=object_of(options, "--options"), data=data or "", reward=reward, tasks=tasks, heldout=heldout, pool=pool, file=file, seed=seed, colocate=colocate,
        config=config, overrides=with_assignments({}, set_ or ()), resume=resume, state=state, console=console,
    )  # fmt: skip
    show(trained)
    _show_where(trained.run.id, state)
    if trained.run.status in ("failed", "stopped"):
        raise typer.Exit(1)


def show(trained: Trained) -> None:
    """How often the model succeeded before and after, and where it lies."""
    run, table = trained.run, Table("held out", "before", "95 %", "after", "95 %", "episodes")
    for mode in MODES:
        before, after = trained.before.get(mode, {}), trained.after.get(mode, {})
        for what, *keys in (("success", "success", "low", "high"), ("mean score", *_SCORE)):
            cells = [_cells([row.get(key) for key in keys]) for row in (before, after)]
            if any(shown != "-" for shown, _ in cells):
                episodes = str(after.get("episodes", "-"))
                table.add_row(f"{what}, {mode}", *cells[0], *cells[1], episodes)
    if table.row_count:
        console.print(table)
    say(f"{run.id} at step {max(run.step, 0)} of {run.steps}: {said(run.status, run.reason)}")
    if trained.model is None:
        say(f"nothing was trained; the model is as it was: {initial_policy(run) or 'as served'}")
    else:
        say(f"trained model: {trained.model} (version {run.policy_version}; 1 is the given one)")
        say(
            "  on the trainer's machine"
            if not trained.model.is_dir()
            else "  a complete Hugging Face folder: weights, config, tokenizer and chat template; transformers' from_pretrained opens it"
            if not (trained.model / "adapter_config.json").is_file()
            else "  a PEFT adapter; `python -m services.trainer merge-lora --adapter FOLDER --out FOLDER` makes a whole model of it"
        )


def _show_where(run_id: str, state: Path) -> None:
    """The commands that show the run; of a deployment that has ended, the one that starts it again, too."""
    there = "" if state == STATE else f" --state {state}"
    if again := start_again(state):
        say(f"to look at it: {again}, and beside it:")
    say(f"  triforge run show {run_id} --step 1{there}")


def _cells(figures: list[float | None]) -> tuple[str, str]:
    """A figure and its interval; a dash where there is none."""
    share, low, high = ("-" if figure is None else f"{figure:.3f}" for figure in figures)
    return share, "-" if "-" in (share, low) else f"{low} to {high}"
