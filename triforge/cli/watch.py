"""The progress of a run: a line for each step, rewrite and alarm, and on a terminal a line for the groups of the step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from triforge.cli.terminal import say
from triforge.clients.trainer import TrainerClient
from triforge.types import ENDED, Event, RunState

_MEASURES: Final = (
    ("success", "success"),
    ("score", "score"),
    ("in band", "in_band"),
    ("judge bal.", "judge/balanced"),
    ("votes trained", "votes/trained_share"),
    ("eval sampled", "eval/sampled"),
    ("eval greedy", "eval/greedy"),
    ("eval score", "eval/sampled_score"),
    ("play s", "seconds/play"),
    ("train s", "seconds/train"),
)
SAME: Final = "the same command with"
_COLOURS: Final = {"better": "green", "worse": "red"}
_LOUD: Final = {"note": "NOTHING TRAINED", "alarm": "ALARM"}  # fields of a step's event


async def watch(console: Console, client: TrainerClient, run_id: str) -> RunState:
    """Show a run until it has ended, and return its last state."""
    run = await client.run(run_id)
    if run.status == "queued":
        say(await _queue(client, run), console)
    with console.status(Text(run.status)) as status:  # only a terminal shows it
        told = set[str]()  # exceptions
        async for _, event in client.events(run_id):
            text, failures = line_of(event), {*event.data.get("failures", {})}
            if not (failures and failures <= told) and not (
                console.is_terminal and event.kind == "waits"
            ):
                for line in text.splitlines():
                    say(line, console, style="red" if line.startswith((*_LOUD.values(),)) else "")
            told |= failures
            if activity := activity_of(event):
                status.update(Text(activity))
    return await client.run(run_id)


def line_of(event: Event) -> str:
    """Describe a finished step, a rewrite, the status of the run or what went wrong; empty for other events."""
    data = event.data
    if event.kind == "step":
        measures = data.get("metrics", {})
        shown = "  ".join(
            f"{title} {_cell(measures[name])}" for title, name in _MEASURES if name in measures
        )
        loud = [f"{title} at step {event.step}: {data[name]}" for name, title in _LOUD.items() if data.get(name)]  # fmt: skip
        return "\n".join([*([f"step {event.step}: {shown}"] if shown else []), *loud])
    if event.kind in ("proposal", "accepted", "rejected"):
        return _rewrite(event)
    if event.kind == "group":
        failures = data.get("failures", {})
        return "\n".join(
            f"NOT MEASURED at step {event.step}: {detail}" for detail in failures.values()
        )
    if event.kind == "waits":
        return activity_of(event)
    if event.kind == "run":
        return f"run {status_text(str(data.get('status', '')), str(data.get('reason', '')))}"
    return ""


def activity_of(event: Event) -> str:
    """Describe the work on the current step; empty for events that say nothing about it."""
    data = event.data
    if event.kind == "group":
        purpose = ", evaluation" if data.get("purpose") == "evaluate" else ""
        return f"step {event.step}{purpose}: {data.get('done')} of {data.get('total')} groups"
    if event.kind == "waits":
        return f"step {event.step}: {data.get('text')}"
    if event.kind == "run":
        return status_text(str(data.get("status", "")), str(data.get("reason", "")))
    return ""


@contextmanager
def left_running(run_id: str) -> Iterator[None]:
    """Say at Ctrl-C that the run goes on."""
    try:
        yield
    except asyncio.CancelledError:
        say(
            f"{run_id} goes on; to stop it: triforge run stop {run_id}; to watch it again: triforge run watch {run_id}"
        )
        raise


async def _queue(client: TrainerClient, run: RunState) -> str:
    """Describe the runs that a queued run waits for."""
    others = [r for r in await client.runs() if r.status not in ENDED and r.id != run.id]
    first = [r for r in others if r.status != "queued" or r.created_at < run.created_at]
    if not first:
        return f"{run.id} is queued: the trainer takes it up next"
    names = ", ".join(f"{r.id} ({r.status}, step {max(r.step, 0)} of {r.steps})" for r in first)
    return f"{run.id} is queued: one run is trained at a time, and it waits for {names}"


def status_text(status: str, reason: str) -> str:
    """Join a run's status and its reason, which may begin with the status."""
    return reason if reason.startswith(status) else f"{status} {reason}".rstrip()


def say_verdict(run: RunState, command: str = SAME) -> None:
    """Print the verdict on a run: its sentence, the alarms, and the next command to try."""
    verdict = run.verdict
    if verdict is None:
        return
    say(verdict.text, style=_COLOURS.get(verdict.word, ""))
    for warning in verdict.warnings:
        say(f"warning: {warning}", style="red")
    if verdict.advice:
        options = "".join(f" --set {option}" for option in verdict.options)
        say(f"next: {verdict.advice}{f': {command}{options}' if options else ''}")


def _rewrite(event: Event) -> str:
    before, after = event.data.get("instruction_before"), event.data.get("instruction_after")
    if event.data.get("state") == "invalid":
        return f"invalid: a rewrite of {before!r}: {event.data.get('reason')}"
    if event.data.get("null_control"):
        return f"{event.kind}: {before!r} as it is, a control"
    if before == after:
        return f"{event.kind}: {before!r}, the same goal under other conditions"
    return f"{event.kind}: {before!r} -> {after!r}"


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"
