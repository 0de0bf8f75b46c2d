"""The live view of a run: one line a finished step, one line of what happens now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from triforge.types import Event, RunState

_COLUMNS = (
    ("success", "success"),
    ("in band", "in_band"),
    ("judge bal.", "judge/balanced"),
    ("eval sampled", "eval/sampled"),
    ("eval greedy", "eval/greedy"),
    ("play s", "seconds/play"),
    ("train s", "seconds/train"),
)
_ROWS = 24  # newest steps shown


class View:
    """What is shown of a run."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._steps: dict[int, dict[str, Any]] = {}
        self._rewrites = {"proposal": 0, "accepted": 0, "rejected": 0}
        self._last = ""
        self._now = ""
        self.status: str = run.status
        self.reason = run.reason

    def take(self, event: Event) -> None:
        """Take an event in."""
        if event.kind == "step" and event.step is not None:
            self._steps[event.step] = event.data
            self._now = ""
        elif event.kind == "group":
            data = event.data
            what = ", evaluation" if data.get("purpose") == "evaluate" else ""
            self._now = f"step {event.step}{what}: {data.get('done')} of {data.get('total')} groups"
        elif event.kind in self._rewrites:
            self._rewrites[event.kind] += 1
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
        for title, _ in _COLUMNS:
            table.add_column(title, justify="right")
        table.add_column("versions", justify="right")
        for step in sorted(self._steps)[-_ROWS:]:
            data = self._steps[step]
            metrics, versions = data.get("metrics", {}), data.get("versions", {})
            cells = [_cell(metrics.get(key)) for _, key in _COLUMNS]
            table.add_row(
                str(step), *cells, f"{versions.get('policy', '')}/{versions.get('reward', '')}"
            )
        counts = ", ".join(f"{count} {kind}" for kind, count in self._rewrites.items())
        caption = f"rewrites: {counts}. {self._last}".strip()
        table.caption = f"{self._now}\n{caption}" if self._now else caption
        return table

    def line(self, event: Event) -> str:
        """One line for a log that is not a terminal; empty for events of no interest."""
        if event.kind == "step":
            metrics = event.data.get("metrics", {})
            shown = "  ".join(
                f"{title} {_cell(metrics[key])}" for title, key in _COLUMNS if key in metrics
            )
            return f"step {event.step}: {shown}"
        if event.kind in self._rewrites:
            return _rewrite(event)
        if event.kind == "run":
            return f"run {self.status} {self.reason}".rstrip()
        return ""


async def watch(console: Console, run: RunState, events: AsyncIterator[tuple[str, Event]]) -> View:
    """Show a run until it has ended: a live table on a terminal, lines elsewhere."""
    view = View(run)
    if not console.is_terminal:
        async for _, event in events:
            view.take(event)
            line = view.line(event)
            if line:
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        return view
    with Live(view.table(), console=console, refresh_per_second=4) as live:
        async for _, event in events:
            view.take(event)
            live.update(view.table())
    return view


def _rewrite(event: Event) -> str:
    before, after = event.data.get("instruction_before"), event.data.get("instruction_after")
    if event.data.get("null_control"):
        return f"{event.kind}: {before!r} as it is, a control"
    return f"{event.kind}: {before!r} -> {after!r}"


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"
