"""Figures of evaluations: success with its interval, pass@k, and the difference of two models task by task."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from triforge.algorithms.paired import pass_at
from triforge.algorithms.theory import score_interval, share_interval, wilson
from triforge.algorithms.verdict import Change, change_of_pairs
from triforge.types import RunStep

MODES: Final = ("sampled", "greedy")
TASKS: Final = 128  # that a training generates to train on, and as many for evaluation


@dataclass(frozen=True, slots=True)
class Played:
    """An episode of an evaluation; outcome and score are None where they were not measured."""

    mode: str
    task: str
    instruction: str
    outcome: int | None
    score: float | None
    error: str = ""


def mode_of(group_id: str) -> str:
    """Return the mode of a group of an evaluation."""
    return group_id.rsplit("-", 2)[1]


def held_out(steps: list[RunStep]) -> dict[str, Any]:
    """Return the last evaluation of these steps by mode: success and mean score, each with its 95 % interval."""
    figures: dict[str, Any] = {}
    for step in steps:
        for mode in MODES:
            episodes = step.metrics.get(f"eval/{mode}_episodes")
            if episodes is None:
                continue
            success = step.metrics.get(f"eval/{mode}")  # absent when no episode was measured
            bounds = (None, None) if success is None else wilson(success * episodes, episodes)
            ends = zip(("low", "high"), bounds, strict=True)  # a step of an older version has none
            low, high = (step.metrics.get(f"eval/{mode}/{end}", bound) for end, bound in ends)
            figures[mode] = {
                "success": success, "low": low, "high": high, "episodes": int(episodes),
                "policy_version": step.policy_version,
            } | {
                f"score{end}": step.metrics[f"eval/{mode}_score{end}"]
                for end in ("", "/low", "/high") if f"eval/{mode}_score{end}" in step.metrics
            }  # fmt: skip
    return figures


def figures_of(played: Sequence[Played]) -> dict[str, Any]:
    """Return the figures of episodes by mode, as `held_out` does, and pass@k where tasks were played several times."""
    return {
        mode: _figures([one for one in played if one.mode == mode])
        for mode in MODES
        if any(one.mode == mode for one in played)
    }


def _figures(played: Sequence[Played]) -> dict[str, Any]:
    rows = _tries(played)
    wins, tries = (math.fsum(column) for column in zip(*rows, strict=True)) if rows else (0.0, 0.0)
    scores = _scores(played)
    most = int(max((tried for _, tried in rows), default=0))
    # episodes of one task are not independent
    low, high = share_interval(rows) if most > 1 else wilson(wins, tries) if tries else (None, None)
    success = wins / tries if tries else None
    found = {"success": success, "low": low, "high": high, "episodes": len(scores) or int(tries)}
    if scores:
        found["score"] = math.fsum(scores) / len(scores)
        found |= zip(("score/low", "score/high"), score_interval(scores) or (), strict=False)
    for k in sorted({*(2**n for n in range(1, most.bit_length())), most} - {0, 1}):
        shares = [(pass_at(k, tried, won), 1.0) for won, tried in rows if tried >= k]
        found[f"pass@{k}"] = math.fsum(share for share, _ in shares) / len(shares)
        found[f"pass@{k}/low"], found[f"pass@{k}/high"] = share_interval(shares)
    return found


def _scores(played: Sequence[Played]) -> list[float]:
    """Return the measured scores; none where each is its episode's success as 1 or 0."""
    scored = [one for one in played if one.score is not None]
    own = any(one.outcome is None or one.score != (one.outcome == 1) for one in scored)
    return [one.score for one in scored if own and one.score is not None]


def _tries(played: Iterable[Played]) -> list[tuple[int, int]]:
    """Return (successes, measured) of each task that has any measured."""
    tasks = defaultdict[str, list[bool]](list)
    for one in played:
        if one.outcome is not None:
            tasks[one.task].append(one.outcome == 1)
    return [(sum(won), len(won)) for won in tasks.values()]


class Compared(NamedTuple):
    """Two models on the tasks that both have played in a mode.

    Attributes:
        change: from the first model to the second.
        tasks: (task, instruction, mean of the first model, mean of the second) where they differ, the largest gains first.
    """

    mode: str
    change: Change
    tasks: Sequence[tuple[str, str, float, float]]


def compare(first: Sequence[Played], second: Sequence[Played]) -> list[Compared]:
    """Compare two models task by task; a mode with too few common tasks is left out."""
    found = []
    for mode in MODES:
        one, other = (_by_task(played, mode) for played in (first, second))
        rows = [
            (task, text, one[task][1], after)
            for task, (text, after) in other.items()
            if task in one
        ]
        if change := change_of_pairs([(before, after) for *_, before, after in rows]):
            differing = [row for row in rows if row[2] != row[3]]
            differing.sort(key=lambda row: row[2] - row[3])
            successes = any(played.outcome is not None for played in second)
            measure = f"eval/{mode}{'' if successes else '_score'}"
            found.append(Compared(mode, replace(change, measure=measure), differing))
    return found


def _by_task(played: Sequence[Played], mode: str) -> dict[str, tuple[str, float]]:
    """Return instruction and mean of each task: success as 1 or 0, or the score where there is none."""
    values = defaultdict[tuple[str, str], list[float]](list)
    for one in played:
        value = one.score if one.outcome is None else float(one.outcome == 1)
        if one.mode == mode and value is not None:
            values[one.task, one.instruction].append(value)
    return {task: (text, math.fsum(own) / len(own)) for (task, text), own in values.items()}


def measures_of(row: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Format the measures of a mode that were made: mean and 95 % interval by name."""
    named = [name for name in row if name == "score" or (name.startswith("pass@") and "/" not in name)]  # fmt: skip
    measures = {"success": ("success", "low", "high")}
    measures |= {name: (name, f"{name}/low", f"{name}/high") for name in named}
    return {
        name: _formatted([row.get(key) for key in keys])
        for name, keys in measures.items()
        if row.get(keys[0]) is not None
    }


def _formatted(values: list[float | None]) -> tuple[str, str]:
    mean, low, high = ("-" if value is None else f"{value:.3f}" for value in values)
    return mean, "-" if "-" in (low, high) else f"{low} to {high}"
