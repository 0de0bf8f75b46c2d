"""Results of the arms' proposals, recomputed from the rows on file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.diagnosis import ARMS
from experiments.report import Results, markdown
from experiments.statistics import mean

LOW, HIGH = 0.2, 0.8
_TITLES = ("arm", "diagnosis", "proposals", "accepted", "in the band", "goal kept")


def table(results: Results) -> str:
    """One row an arm, of what is on file; all seeds together."""
    lines = []
    for name, arm in ARMS.items():
        found = [result["tasks"]["rows"] for (had, _), result in results.items() if had == name]
        rows = [row for part in found for row in part]
        if rows:
            lines.append((f"`{name}`", arm.title, str(len(rows)), *shares(rows)))
    return (
        markdown(_TITLES, lines)
        + f"\n`accepted`: of all proposals, those whose candidate moved as asked and lies in [{LOW}, {HIGH}]; `in the band`, `goal kept`: of "
        "the candidates that passed the checks. Rates are those of the given policy; means over proposals ± half of the 95 % interval.\n"
    )


def shares(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Return accepted, in the band and goal kept of an arm's proposals, each with its interval."""
    made = [row for row in rows if "candidate" in row and row["candidate"][1] and row["parent"][1]]
    inside = [LOW <= _rate(row["candidate"]) <= HIGH for row in made]
    moved = [
        _rate(row["candidate"]) < _rate(row["parent"])
        if row["direction"] == "harder"
        else _rate(row["candidate"]) > _rate(row["parent"])
        for row in made
    ]
    accepted = [float(a and b) for a, b in zip(inside, moved, strict=True)]
    accepted += [0.0] * (len(rows) - len(made))
    kept = [float(row["kept"]) for row in made]
    return _shown(accepted), _shown([float(one) for one in inside]), _shown(kept)


def _rate(counts: Sequence[int]) -> float:
    successes, measured = counts
    return successes / measured


def _shown(values: Sequence[float]) -> str:
    return mean(values).text() if values else "-"
