"""`triforge plan`: what of a training goes on which card, and whether it fits."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
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
    _, plan = training.planned(training.without_models(), lambda text: say(text, style="dim"))
    if form:
        typer.echo(_WRITERS[form](plan))
    elif as_json:
        typer.echo(json.dumps(asdict(plan), indent=2))
    else:
        show(plan)


def show(plan: Plan) -> None:
    """Print a plan as tables."""
    if plan.cards:
        first = plan.cards[0]
        say(
            f"{len(plan.cards)} cards of {first.memory / GIB:.0f} GiB{f', {first.name}' if first.name else ''}"
        )
    else:
        say("no GPU: all of it runs on the CPU")
    engines = grid(
        "engine",
        "cards",
        "TP",
        "of the card",
        "weights, GiB",
        "KV cache, GiB",
        "tokens in the cache",
        whole=3,
    )
    for one in plan.engines:
        share = f"{one.memory_fraction:g}" if one.cards else "-"
        sizes = (_gib(one.memory.weights), _gib(one.memory.kv_cache), f"{one.cache_tokens:,}")
        engines.add_row(one.role, _cards(one.cards), str(one.tensor_parallel), share, *sizes)
    console.print(engines)
    names = ("weights", "gradients", "optimiser", "reference", "activations", "working", "total")
    learners = grid("learner", "cards", "ranks", *(f"{name}, GiB" for name in names), whole=3)
    for learner in plan.learners:
        figures = (_gib(getattr(learner.memory, name)) for name in names)
        learners.add_row(learner.role, _cards(learner.cards), str(learner.ranks), *figures)
    console.print(learners)
    if plan.colocate:
        say("engines and learners take turns on one card (run.colocate)")
    disk = grid("on the disk", "a checkpoint, GiB", "a version, GiB", "kept of each", "in all, GiB")
    for kept in plan.disk:
        disk.add_row(
            kept.role, _gib(kept.checkpoint), _gib(kept.version), str(kept.kept), _gib(kept.total)
        )
    console.print(disk)
    if plan.phases:
        phases = grid("phase of a step", "seconds at most", "by", "which is")
        for phase in plan.phases:
            phases.add_row(phase.name, f"{phase.seconds:.3g}", phase.rate, phase.mark)
        console.print(phases)
    for note in plan.notes:
        say(f"note: {note}", style="yellow")


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}" if size >= GIB / 10 else f"{size / GIB:.2g}"


def _cards(cards: tuple[int, ...]) -> str:
    return ", ".join(map(str, cards)) or "CPU"
