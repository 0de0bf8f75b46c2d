"""`triforge plan`: what of a training goes on which card, and whether it fits."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table
from typer import Option

from triforge.cli.deployment import OverlayOption, SetOption
from triforge.cli.terminal import console, grid, say
from triforge.cli.training import Training
from triforge.config import with_assignments
from triforge.planning import write
from triforge.planning.memory import GIB
from triforge.planning.plan import Plan


class _Form(StrEnum):
    COMPOSE = "compose"
    K8S = "k8s"


_LEARNERS = {
    "weights": "weights", "grads": "gradients", "AdamW": "optimiser", "KL ref": "reference", "activ.": "activations",
    "other": "working", "total": "total",
}  # fmt: skip
_WRITERS = {_Form.COMPOSE: write.compose, _Form.K8S: write.kubernetes}


def plan_command(
    model: Annotated[
        str, Option(help="Folder with config.json, or id on the Hugging Face hub.")
    ] = "",
    gpus: Annotated[
        str, Option(help="Cards, as 8, or 8x80GB for another machine; else all that are here.")
    ] = "",
    preset: Annotated[str, Option(help="Algorithm; grpo if there is no reward model.")] = "",
    reward_model: Annotated[str, Option(help="For presets with votes; as --model.")] = "",
    rewriter_model: Annotated[str, Option(help="To have tasks rewritten; as --model.")] = "",
    colocate: Annotated[bool | None, Option(help="Engines and learners share a card.")] = None,
    config: OverlayOption = None,
    set_: SetOption = None,
    as_json: Annotated[bool, Option("--json", help="Print the plan as JSON.")] = False,
    form: Annotated[
        _Form | None, Option("--write", help="Print it as a compose override, or as Helm values.")
    ] = None,
) -> None:
    """Show what of a training goes on which GPU, and whether it fits; starts nothing and needs no GPU."""
    if not (model or config):
        raise typer.BadParameter("given nothing, expected a model", param_hint="--model")
    training = Training(
        model=model, preset=preset, reward_model=reward_model, rewriter_model=rewriter_model, config=config, colocate=colocate,
        gpus=gpus, overrides=with_assignments({}, set_ or ()),
    )  # fmt: skip
    document, plan = training.planned(
        training.without_models(), lambda text: say(text, style="dim")
    )
    if form:
        typer.echo(_WRITERS[form](plan, document))
    elif as_json:
        typer.echo(json.dumps(asdict(plan), indent=2))
    else:
        show(plan)


def show(plan: Plan) -> None:
    """Print a plan as tables."""
    where = "no GPU: all of it runs on the CPU"
    if plan.cards:
        first = plan.cards[0]
        name = f"{first.name}, " if first.name else ""
        where = f"cards: {len(plan.cards)} ({name}{first.memory / GIB:.0f} GiB)"
    say(f"{where}; sizes in GiB, of engines and learners on each card")
    engines = _table("engine", 2, "card", "TP", "share", "weights", "KV cache", "tokens")  # fmt: skip
    for one in plan.engines:
        share = f"{one.memory_fraction:g}" if one.cards else "-"
        sizes = (_gib(one.memory.weights), _gib(one.memory.kv_cache), f"{one.cache_tokens:,}")
        engines.add_row(one.role, _cards(one.cards), str(one.tensor_parallel), share, *sizes)
    console.print(engines)
    learners = _table("learner", 2, "card", *_LEARNERS)
    for learner in plan.learners:
        figures = (_gib(getattr(learner.memory, part)) for part in _LEARNERS.values())
        where = _cards(learner.cards) if learner.cards else f"{learner.ranks} CPU"
        learners.add_row(learner.role, where, *figures)
    console.print(learners)
    if plan.colocate:
        say("engines and learners take turns on one card (run.colocate)")
    disk = _table("disk", 1, "checkpoint", "version", "kept + 1 in writing", "in all")
    for kept in plan.disk:
        files = (_gib(kept.checkpoint), _gib(kept.version), str(kept.kept), _gib(kept.total))
        disk.add_row(kept.role, *files)
    console.print(disk)
    if plan.phases:
        _show_seconds(plan)
    elif plan.cards:
        say("no seconds: the data sheet of these cards is not known")
    for note in plan.notes:
        console.print(f"note: {note}", style="yellow", highlight=False)


def _show_seconds(plan: Plan) -> None:
    phases = _table("a step at most", 1, "seconds", "mark", "rate")
    for column in phases.columns[2:]:
        column.justify = "left"
    for phase in plan.phases:
        phases.add_row(phase.name, f"{phase.seconds:.3g}", phase.mark, phase.rate)
    console.print(phases)
    console.print(plan.assumed, style="dim", highlight=False)


def _table(title: str, names: int, *headings: str) -> Table:
    """Return a table whose first column has the title as its head; columns after so many `names` are numbers."""
    table = grid(title, *headings, whole=names)
    for column in table.columns[names:]:
        column.justify = "right"
    return table


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}" if size >= GIB / 10 else f"{size / GIB:.2g}"


def _cards(cards: tuple[int, ...]) -> str:
    whole = len(cards) > 2 and cards[-1] - cards[0] == len(cards) - 1
    return f"{cards[0]}-{cards[-1]}" if whole else ", ".join(map(str, cards)) or "CPU"
