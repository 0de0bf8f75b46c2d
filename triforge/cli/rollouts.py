"""The rollouts of a step in the terminal: what was seen, answered and voted, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

_COLUMNS = [
    "purpose", "group_id", "task_id", "task_version", "instruction", "trajectory_id", "observation", "response",
    "outcome", "outcome_error", "successes", "measured", "reward", "advantage", "reason", "votes",
]  # fmt: skip
_OUTCOMES = {1: "success", -1: "failure"}
_VOTES = {1: "+1", 0: "unreadable", -1: "-1"}


def show(console: Console, file: Path, *, group: str, limit: int) -> None:
    """Print the first `limit` rollouts of an export, or of one group of it; a terminal cuts lines at its width."""
    rows = pq.read_table(file, columns=_COLUMNS).to_pylist()
    found = [row for row in rows if group in ("", row["group_id"])]
    rollouts = [list(steps) for _, steps in groupby(found, key=itemgetter("trajectory_id"))]
    shown = min(limit, len(rollouts))
    end = f"{shown} of {len(rollouts)} rollouts; --limit shows more, --group those of one group"
    for line in (*_lines(rollouts[:limit]), end):
        if console.is_terminal:
            console.print(line, highlight=False, overflow="ellipsis", no_wrap=True)
        else:
            console.print(line, highlight=False, soft_wrap=True)


def _lines(rollouts: list[list[dict[str, Any]]]) -> Iterator[str]:
    group = ""
    for steps in rollouts:
        first = steps[0]
        if first["group_id"] != group:
            group = first["group_id"]
            yield f"group {group} ({first['purpose']}): {first['successes']} of {first['measured']} succeeded"
            yield f"  task {first['task_id']}, version {first['task_version']}: {first['instruction']!r}"
        ended = _OUTCOMES.get(first["outcome"], f"not measured: {first['outcome_error']}")
        yield f"  rollout {first['trajectory_id']}: {ended}"
        for number, step in enumerate(steps):
            yield f"    {number} saw      {step['observation']!r}"
            yield f"      answered {step['response']!r}"
            votes = " ".join(_VOTES[vote["value"]] for vote in step["votes"]) or "none"
            reward = "none" if step["reward"] is None else f"{step['reward']:.3f}"
            became = f"left out: {step['reason']}" if step["reason"] else "trained on"
            yield f"      votes {votes}; reward {reward}; advantage {step['advantage']:.3f}; {became}"
