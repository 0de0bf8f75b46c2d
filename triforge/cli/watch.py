"""The progress of a run: a line for each step, rewrite and alarm, and on a terminal a line for the groups of the step."""

from __future__ import annotations

import asyncio
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from triforge.cli.terminal import console as own_console
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
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_ADVICE: Final = "; to change: "  # in a note
_GIVEN_TASKS: Final = {"--pool", "--file", "-f", "--data"}  # no further ones can be held out
_ASSIGNED: Final = {"--steps": "run.steps", "--heldout": "run.eval_tasks"}
_COLOURS: Final = {"better": "green", "worse": "red"}
_LOST: Final = "NOT MEASURED"
_LOUD: Final = {"note": "NOTHING TRAINED", "alarm": "ALARM"}  # fields of a step's event


async def watch(console: Console, client: TrainerClient, run_id: str) -> RunState:
    """Show a run until it has ended, and return its last state."""
    run = await client.run(run_id)
    if run.status == "queued":
        say(await _queue(client, run), console)
    given: set[str] = set()  # advice, which stands in the note of every step, and exceptions
    with console.status(Text(run.status)) as status:  # only a terminal shows it
        async for _, event in client.events(run_id):
            if console.is_terminal and event.kind == "waits":
                status.update(Text(activity_of(event)))
                continue
            for line in line_of(event, given).splitlines():
                shown = fitted(line, console.width) if console.is_terminal else line
                say(
                    shown, console, style="red" if line.startswith((*_LOUD.values(), _LOST)) else ""
                )
            if activity := activity_of(event):
                status.update(Text(activity))
    return await client.run(run_id)


def fitted(line: str, width: int) -> str:
    """Break the measures of a step between two of them, so that none is torn apart at the edge."""
    if "  " not in line:
        return line
    whole = line.replace(" ", _NO_BREAK).replace(2 * _NO_BREAK, "  ")
    return textwrap.fill(whole, width, subsequent_indent="    ").replace(_NO_BREAK, " ")


def line_of(event: Event, given: set[str] | None = None) -> str:
    """Describe a finished step, a rewrite, the status of the run or what was not measured; empty for other events.

    Advice and exceptions that were `given` are left out, and new ones are added to it. The reason of an ended run is left to the caller.
    """
    data = event.data
    if event.kind == "step":
        measures = data.get("metrics", {})
        shown = "  ".join(
            f"{title} {_cell(measures[name])}" for title, name in _MEASURES if name in measures
        )
        texts = {name: _once(str(data[name]), given) for name in _LOUD if data.get(name)}
        loud = [f"{_LOUD[name]} at step {event.step}: {text}" for name, text in texts.items()]
        return "\n".join([*([f"step {event.step}: {shown}"] if shown else []), *loud])
    if event.kind in ("proposal", "accepted", "rejected"):
        return _rewrite(event)
    if event.kind == "group":
        failures = {
            why: d for why, d in data.get("failures", {}).items() if why not in (given or ())
        }
        if given is not None:
            given.update(failures)
        return "\n".join(f"{_LOST} at step {event.step}: {detail}" for detail in failures.values())
    if event.kind == "waits":
        return activity_of(event)
    if event.kind == "run":
        status, reason = str(data.get("status", "")), str(data.get("reason", ""))
        return f"run {status if status in ENDED else status_text(status, reason)}"
    return ""


def _once(note: str, given: set[str] | None) -> str:
    """Cut off the advice of a note, and the sample behind it, if it was given before."""
    facts, _, advice = note.partition(_ADVICE)
    advice = advice.partition("; a sample")[0]
    if given is None or not advice:
        return note
    if advice in given:
        return facts
    given.add(advice)
    return note


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


def say_verdict(run: RunState, command: Sequence[str] = (), to: Console = own_console) -> None:
    """Print the verdict on a run: its sentence, the alarms, and the next command to try; `command` began the run."""
    verdict = run.verdict
    if verdict is None:
        return
    say(verdict.text, to, style=_COLOURS.get(verdict.word, ""))
    for warning in verdict.warnings:
        say(f"warning: {warning}", to, style="red")
    if verdict.advice:
        given = {word.partition("=")[0] for word in command} & _GIVEN_TASKS
        fixed = given or not command
        options = [o for o in verdict.options if not (fixed and o.startswith("--heldout"))]
        line = (
            f": {shlex.join(_without(command, options))} {' '.join(options)}"
            if command
            else f", with {', '.join(map(_field, options))}"
        )
        say(f"next: {verdict.advice}{line if options else ''}", to)


def _field(option: str) -> str:
    """Return what an option of `triforge train` sets, as a field of the document, which other commands and Python set, too."""
    name, _, value = option.removeprefix("--set ").replace("=", " ").partition(" ")
    return f"{_ASSIGNED.get(name, name)} = {value}"


def _without(command: Sequence[str], options: Sequence[str]) -> list[str]:
    """Leave out of a command what these options replace: the option itself, and assignments by `--set`, which would win."""
    kept: list[str] = []
    replaced = {option.rpartition("=")[0] or option.split()[0] for option in options}
    replaced |= {f"--set {_ASSIGNED[name]}" for name in replaced & _ASSIGNED.keys()}
    words = iter(command)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in ("--set", *replaced):
            kept.append(word)
            continue
        value = word.removeprefix(f"{name}=") if equals else next(words, "")
        if name == "--set" and f"--set {value.partition('=')[0]}" not in replaced:
            kept += [name, value]
    return kept


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
