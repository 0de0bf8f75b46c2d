"""The live view of a run: one line a finished step, one line of what happens now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from triforge.cli.terminal import say
from triforge.clients.trainer import TrainerClient
from triforge.types import ENDED, Event, RunState

_COLUMNS = (
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
_ROWS = 24  # newest steps shown


class View:
    """What is shown of a run."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._steps: dict[int, dict[str, Any]] = {}
        self._rewrites = {"proposal": 0, "accepted": 0, "rejected": 0, "invalid": 0}
        self._last = self._note = ""
        self._now = ""
        self.status: str = run.status
        self.reason = run.reason

    def take(self, event: Event) -> None:
        """Take an event in."""
        if event.kind == "step" and event.step is not None:
            self._steps[event.step] = event.data
            self._now, self._note = "", _noted(event)
        elif event.kind == "group":
            data = event.data
            what = ", evaluation" if data.get("purpose") == "evaluate" else ""
            self._now = f"step {event.step}{what}: {data.get('done')} of {data.get('total')} groups"
        elif event.kind in self._rewrites:
            self._rewrites[_verdict(event)] += 1
            self._last = _rewrite(event)
        elif event.kind == "run":
            self.status = str(event.data.get("status", self.status))
            self.reason = str(event.data.get("reason", ""))

    def table(self) -> Table:
        """The view as a table."""
        done = max(self._steps, default=0)
        table = Table(
            title=f"{self._run.name} ({self._run.id}): {self.status}, step {done} of {self._run.steps}"
        )
        table.add_column("step", justify="right")
        measured = {name for data in self._steps.values() for name in data.get("metrics", {})}
        columns = [
            (title, key) for title, key in _COLUMNS if not key.endswith("score") or key in measured
        ]
        for title, _ in columns:
            table.add_column(title, justify="right")
        table.add_column("versions", justify="right")
        for step in sorted(self._steps)[-_ROWS:]:
            data = self._steps[step]
            metrics, versions = data.get("metrics", {}), data.get("versions", {})
            cells = [_cell(metrics.get(key)) for _, key in columns]
            table.add_row(
                str(step), *cells, f"{versions.get('policy', '')}/{versions.get('reward', '')}"
            )
        counts = ", ".join(f"{count} {kind}" for kind, count in self._rewrites.items())
        caption = f"rewrites: {counts}. {self._last}".strip()
        waiting = "" if self.status in ENDED else self.reason
        table.caption = "\n".join(filter(None, (self._note, waiting, self._now, caption)))
        return table

    def line(self, event: Event) -> str:
        """One line for a log that is not a terminal; empty for events of no interest."""
        if event.kind == "step":
            metrics = event.data.get("metrics", {})
            shown = "  ".join(
                f"{title} {_cell(metrics[key])}" for title, key in _COLUMNS if key in metrics
            )
            lines = [f"step {event.step}: {shown}"] if shown else []
            return "\n".join([*lines, *filter(None, [_noted(event)])])
        if event.kind in self._rewrites:
            return _rewrite(event)
        if event.kind == "run":
            return f"run {said(self.status, self.reason)}"
        return ""


async def watch(console: Console, client: TrainerClient, run_id: str) -> RunState:
    """Show a run until it has ended, and return it as it ended: a live table on a terminal, lines elsewhere."""
    run = await client.run(run_id)
    view, events = View(run), client.events(run_id)
    if run.status == "queued":
        _print(console, await _queue(client, run))
    if console.is_terminal:
        with Live(view.table(), console=console, refresh_per_second=4) as live:
            async for _, event in events:
                view.take(event)
                live.update(view.table())
    else:
        async for _, event in events:
            view.take(event)
            _print(console, view.line(event))
    return await client.run(run_id)


@contextmanager
def left_running(run_id: str) -> Iterator[None]:
    """Say at Ctrl-C that the run goes on without whoever watched it."""
    try:
        yield
    except asyncio.CancelledError:
        say(
            f"{run_id} goes on; to stop it: triforge run stop {run_id}; to watch it again: triforge run watch {run_id}"
        )
        raise


def _print(console: Console, line: str) -> None:
    if line:
        say(line, console)


async def _queue(client: TrainerClient, run: RunState) -> str:
    """What a queued run waits for."""
    others = [r for r in await client.runs() if r.status not in ENDED and r.id != run.id]
    first = [r for r in others if r.status != "queued" or r.created_at < run.created_at]
    if not first:
        return f"{run.id} is queued: the trainer takes it up next"
    names = ", ".join(f"{r.id} ({r.status}, step {max(r.step, 0)} of {r.steps})" for r in first)
    return f"{run.id} is queued: one run is trained at a time, and it waits for {names}"


def said(status: str, reason: str) -> str:
    """A run's status with its reason, which may begin with it."""
    return reason if reason.startswith(status) else f"{status} {reason}".rstrip()


def _noted(event: Event) -> str:
    """What is said of a step that trained on nothing, and its alarms; else empty."""
    titles = {"note": "NOTHING TRAINED", "alarm": "ALARM"}
    said = [(title, event.data.get(name)) for name, title in titles.items()]
    return "\n".join(f"{title} at step {event.step}: {text}" for title, text in said if text)


def _verdict(event: Event) -> str:
    return "invalid" if event.data.get("state") == "invalid" else event.kind


def _rewrite(event: Event) -> str:
    before, after = event.data.get("instruction_before"), event.data.get("instruction_after")
    if _verdict(event) == "invalid":
        return f"invalid: a rewrite of {before!r}: {event.data.get('reason')}"
    if event.data.get("null_control"):
        return f"{event.kind}: {before!r} as it is, a control"
    if before == after:
        return f"{event.kind}: {before!r}, the same goal under other conditions"
    return f"{event.kind}: {before!r} -> {after!r}"


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"
