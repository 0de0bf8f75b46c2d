"""The rollouts of a step in the terminal: what was seen, answered and voted, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

_COLUMNS = [
    "purpose", "group_id", "task_id", "task_version", "instruction", "trajectory_id", "observation", "response",
    "outcome", "outcome_error", "successes", "measured", "reward", "advantage", "reason", "votes",
]  # fmt: skip
_OUTCOMES = {1: "success", -1: "failure"}
_VOTES = {1: "+1", 0: "unreadable", -1: "-1"}


def lines(file: Path, *, group: str, limit: int, width: int) -> Iterator[str]:
    """Lines of at most `width` characters about the first `limit` rollouts of an export, or of one group of it."""
    table = pq.read_table(file, columns=_COLUMNS)
    rows: list[dict[str, Any]] = [r for r in table.to_pylist() if group in ("", r["group_id"])]
    shown, count = "", 0
    for _, found in groupby(rows, key=itemgetter("trajectory_id")):
        steps, count = list(found), count + 1
        if count > limit:
            continue
        if steps[0]["group_id"] != shown:
            shown = steps[0]["group_id"]
            yield from (cut(line, width) for line in _group(steps[0]))
        yield from (cut(line, width) for line in _rollout(steps))
    if count > limit:
        yield f"{limit} of {count} rollouts are shown; --limit shows more, --group those of one group"
    elif not count:
        yield f"no rollouts{f' of group {group}' if group else ''}"


def cut(line: str, width: int) -> str:
    """The line in at most `width` characters."""
    return line if len(line) <= width else f"{line[: max(0, width - 3)]}..."


def _group(row: dict[str, Any]) -> Iterable[str]:
    yield f"group {row['group_id']} ({row['purpose']}): {row['successes']} of {row['measured']} succeeded"
    yield f"  task {row['task_id']}, version {row['task_version']}: {row['instruction']!r}"


def _rollout(steps: list[dict[str, Any]]) -> Iterable[str]:
    ended = _OUTCOMES.get(steps[0]["outcome"], f"not measured: {steps[0]['outcome_error']}")
    yield f"  rollout {steps[0]['trajectory_id']}: {ended}"
    for number, step in enumerate(steps):
        yield f"    {number} saw      {step['observation']!r}"
        yield f"      answered {step['response']!r}"
        votes = " ".join(_VOTES[vote["value"]] for vote in step["votes"]) or "none"
        reward = "none" if step["reward"] is None else f"{step['reward']:.3f}"
        became = f"left out: {step['reason']}" if step["reason"] else "trained on"
        yield f"      votes {votes}; reward {reward}; advantage {step['advantage']:.3f}; {became}"
