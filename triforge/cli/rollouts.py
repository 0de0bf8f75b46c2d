"""The rollouts of a step in the terminal: observations, responses, votes and credit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from triforge.types import TrajectorySummary

_COLUMNS: Final = [
    "purpose", "group_id", "task_id", "task_version", "instruction", "trajectory_id", "observation", "response",
    "outcome", "outcome_error", "score", "reward", "advantage", "reason", "votes",
]  # fmt: skip
_OUTCOMES: Final = {1: "success", -1: "failure"}
_VOTES: Final = {1: "+1", 0: "unreadable", -1: "-1"}


def show(
    console: Console,
    file: Path,
    found: Sequence[TrajectorySummary],
    *,
    chosen: Collection[str] | None,
    group: str,
    limit: int,
) -> None:
    """Print the first `limit` rollouts of an export, of one group of it or of the `chosen` ids, and those `found` that were not measured; a terminal cuts lines at its width."""
    import pyarrow.parquet as pq  # noqa: PLC0415  it is slow to import, and only this command reads files

    rows = [
        row
        for row in pq.read_table(file, columns=_COLUMNS).to_pylist()
        if group in ("", row["group_id"])
    ]
    rollouts = [list(steps) for _, steps in groupby(rows, key=itemgetter("trajectory_id"))]
    groups = groupby((steps[0] for steps in rollouts), key=itemgetter("group_id"))
    heads = {name: _group([*members]) for name, members in groups}
    if chosen is not None:
        rollouts = [steps for steps in rollouts if steps[0]["trajectory_id"] in chosen]
    lost = [row for row in found if row.error]
    shown = min(limit, len(rollouts))
    end = f"{shown} of {len(rollouts)} rollouts; --limit shows more, --group those of one group"
    for line in (*_lines(rollouts[:limit], heads), end, *_lost_lines(lost, limit)):
        if console.is_terminal:
            console.print(line, highlight=False, overflow="ellipsis", no_wrap=True)
        else:
            console.print(line, highlight=False, soft_wrap=True)


def _group(members: list[dict[str, Any]]) -> str:
    """Summarise a group: successes where success is known, and the mean score where scores add to it."""
    first = members[0]
    outcomes = [row["outcome"] for row in members if row["outcome"] is not None]
    scores = [row["score"] for row in members if row["score"] is not None]
    parts = [f"{outcomes.count(1)} of {len(outcomes)} succeeded"] if outcomes else []
    if any(_has_own_score(row) for row in members):
        mean = math.fsum(scores) / len(scores)
        parts.append(f"mean score {mean:.3f} of {len(scores)} measured")
    return f"group {first['group_id']} ({first['purpose']}): {', '.join(parts) or 'none measured'}"


def _lost_lines(lost: Sequence[TrajectorySummary], limit: int) -> Iterator[str]:
    if lost:
        yield f"{len(lost)} rollouts were not measured:"
    for one in [one for one in lost if not one.length][:limit]:  # the others have steps
        yield f"  rollout {one.id} ({one.purpose}) of {one.instruction!r:.60}: {one.error}"


def _has_own_score(row: dict[str, Any]) -> bool:
    """Whether the score adds to success."""
    return row["score"] not in (None, {1: 1.0, -1: 0.0}.get(row["outcome"]))


def _outcome(row: dict[str, Any]) -> str:
    if row["score"] is None:
        return f"not measured: {row['outcome_error']}"
    score = f"score {row['score']:.3f}" if _has_own_score(row) else ""
    return ", ".join(filter(None, (_OUTCOMES.get(row["outcome"]), score)))


def _lines(rollouts: list[list[dict[str, Any]]], heads: dict[str, str]) -> Iterator[str]:
    group = ""
    for steps in rollouts:
        first = steps[0]
        if first["group_id"] != group:
            group = first["group_id"]
            yield heads[group]
            yield f"  task {first['task_id']}, version {first['task_version']}: {first['instruction']!r}"
        credits = [_credit(step) for step in steps]
        same = len({*credits}) == 1
        yield f"  rollout {first['trajectory_id']}: {_outcome(first)}{f'; {credits[0]}' if same else ''}"
        for number, (step, credit) in enumerate(zip(steps, credits, strict=True)):
            yield f"    {number} saw      {step['observation']!r}"
            yield f"      answered {step['response']!r}"
            if not same:
                yield f"      {credit}"


def _credit(step: dict[str, Any]) -> str:
    votes = " ".join(_VOTES[vote["value"]] for vote in step["votes"])
    reward = "none" if step["reward"] is None else f"{step['reward']:.3f}"
    credit = f"left out: {step['reason']}" if step["reason"] else "trained on"
    return f"{f'votes {votes}; ' if votes else ''}reward {reward}; advantage {step['advantage']:.3f}; {credit}"
