"""Results of each method's curve and of its baseline: one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from experiments.methods import COMPARED, Compared
from experiments.report import Results, at_end, cell, difference, markdown, summary

_QUARTERS = 4
_TITLES = (
    "method",
    "arm",
    "seeds",
    *(f"quarter {n + 1}" for n in range(_QUARTERS)),
    "arm less baseline",
)


def table(results: Results) -> str:
    """Each arm's curve by quarters, and at its end the difference of the method to its baseline."""
    rows = [row for one in COMPARED for row in _rows(results, one)]
    return (
        markdown(_TITLES, rows)
        + "\nMeans over seeds ± half of the 95 % interval (Student's t), the difference paired by seed: of the last quarter, in the "
        "household of success on held-out tasks (sampled). The curve is success on what is played unless its method says otherwise.\n"
    )


def end(result: Mapping[str, Any], column: str) -> float | None:
    """Return what is compared of a run."""
    if result["evaluations"]:
        return at_end("sampled" if column == "success" else column)(result)
    return quarter(result, _QUARTERS - 1, column)


def quarter(result: Mapping[str, Any], number: int, column: str) -> float | None:
    """Mean of a quarter of the curve; a point stands in each quarter that it reaches into."""
    curve = [one[column] for one in (*result["steps"], *result["evaluations"]) if column in one]
    first, last = (number * len(curve) // _QUARTERS, -(-(number + 1) * len(curve) // _QUARTERS))
    return fmean(curve[first:last]) if curve else None


def _rows(results: Results, one: Compared) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for arm in (one.arm, one.baseline):
        seeds = sum(name == arm for name, _ in results)
        if not seeds:
            continue
        curve = [
            cell(summary(results, arm, partial(quarter, number=n, column=one.column)))
            for n in range(_QUARTERS)
        ]
        less = (
            cell(difference(results, arm, one.baseline, partial(end, column=one.column)), sign=True)
            if arm == one.arm
            else ""
        )
        shown = f"{one.method}, {one.measure}" if one.measure != "success" else one.method
        rows.append([shown, f"`{arm}`", f"{seeds}", *curve, less])
    return rows
