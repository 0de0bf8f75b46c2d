"""How far rewrites of Table 1's tasks reach: every choice of the menu, played by the policy of the warm start; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.report import Results, markdown
from experiments.settings import Arm
from experiments.statistics import mean
from experiments.study import Study
from experiments.table1 import ARMS, SEEDS, STUDY, Table1Settings

LOW, HIGH = 0.2, 0.8
_TITLES = (
    "tasks", "way", "number", "their rate", "rewrites", "number a task", "rate", "moved into the band", "tasks with such a one",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReachSettings(Table1Settings):
    """Table 1's models and tasks: `asked` of each kind that is trained on, each version played `measured` times."""

    asked: int = 24
    measured: int = 16


_FULL = ReachSettings()
REACH = Study(
    name="reach",
    arms={"menu": Arm(title="every choice of the menu", config=ARMS["O"].config)},
    seeds=SEEDS[:2],
    full=_FULL,
    quick=replace(
        _FULL, asked=3, measured=2, tasks=STUDY.quick.pool(), warm=STUDY.quick.warm, groups=2, rollouts=2
    ),
    run="experiments.reach_run:ReachRun",
    report="experiments.reach",
)  # fmt: skip


def table(results: Results) -> str:
    """Return a row for the tasks of a kind and a way, once for rewrites that keep the goal and once for others; all seeds together."""
    rows: list[Mapping[str, Any]] = [row for r in results.values() for row in r["tasks"]["rows"]]
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for way in ("easier", "harder"):
            mine = [row for row in rows if (row["kind"], row["direction"]) == (kind, way)]
            if mine:
                lines += [
                    (kind, way, str(len(mine)), _mean(_rate(row["parent"]) for row in mine), name, *_reached(mine, key, way))
                    for name, key in (("goal kept", "kept"), ("another type of goal", "other"))
                ]  # fmt: skip
    return (
        markdown(_TITLES, lines)
        + f"\n`moved into the band`: of the rewrites, those that move the rate as asked and lie in [{LOW}, {HIGH}]. Means over tasks of what "
        "is true of a task's rewrites, ± half of the 95 % interval.\n"
    )


def _reached(rows: Sequence[Mapping[str, Any]], key: str, way: str) -> tuple[str, str, str, str]:
    """Return number, rate and share in the band of a task's rewrites, and of the tasks how many have one in the band."""
    having = [row for row in rows if row[key]]
    found = [[_is_good(row["parent"], counts, way) for counts in row[key]] for row in having]
    return (
        _mean(float(len(row[key])) for row in rows),
        _mean(sum(map(_rate, row[key])) / len(row[key]) for row in having),
        _mean(sum(good) / len(good) for good in found),
        f"{sum(map(any, found))} of {len(rows)}",
    )


def _is_good(parent: Sequence[int], candidate: Sequence[int], way: str) -> bool:
    moved = _rate(candidate) - _rate(parent)
    return LOW <= _rate(candidate) <= HIGH and (moved > 0 if way == "easier" else moved < 0)


def _rate(counts: Sequence[int]) -> float:
    successes, measured = counts
    return successes / measured


def _mean(values: Iterable[float]) -> str:
    known = list(values)
    return mean(known).text() if known else "-"
