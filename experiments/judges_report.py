"""Results of the judge's targets: one table."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from experiments.judges import RATES, TARGETS
from experiments.report import Results, Value, by_seed, cell, markdown, of, summary

_MEASURES = ("within", "label", "cosine")
_TITLES = (
    "target, rate", "seeds",
    *(f"{measure}, {whose} episodes" for measure in _MEASURES for whose in ("first", "last")),
    "votes trained on a step",
)  # fmt: skip


def table(results: Results) -> str:
    """Return the judge before its training and what training changed, on the episodes of the first and of the last step."""
    rows = []
    for target, rate in product(TARGETS, RATES):
        if found := {
            k: run for k, run in results.items() if k[0] == rate and target in run["tasks"]
        }:
            rows.append(_row(found, rate, target))
    if not rows:
        return "nothing is on file\n"
    return (
        markdown(_TITLES, rows)
        + "\nBefore training, and what training changed: means over seeds ± half of the 95 % interval (Student's t). `within`: of two "
        "steps of one task and index with different labels, how often the better one has the higher mean vote. `label`: accuracy of "
        "single votes, balanced over the labels. `cosine`: of the votes' advantage with the label, in groups that all fail.\n"
    )


def changed(target: str, measure: str, whose: str) -> Value:
    """Return what training towards a target made of a measure on the same episodes."""

    def value(result: Mapping[str, Any]) -> float | None:
        first, last = (
            of("judge", f"{measure}/{who}/policy_{whose}")(result)
            for who in ("judge_first", f"{target}/judge_last")
        )
        return None if first is None or last is None else last - first

    return value


def _row(results: Results, name: str, target: str) -> list[str]:
    row = [f"`{target}`, {name}", str(len(by_seed(results, name, lambda _: 1.0)))]
    for measure in _MEASURES:
        for whose in ("first", "last"):
            before = summary(results, name, of("judge", f"{measure}/judge_first/policy_{whose}"))
            change = cell(summary(results, name, changed(target, measure, whose)), sign=True)
            row.append(f"{'-' if before is None else f'{before.value:.3f}'} {change}")

    def trained(result: Mapping[str, Any]) -> float | None:
        found: list[int] = result["tasks"][target]["rows"]
        return sum(found) / len(found) if found else None

    return [*row, cell(summary(results, name, trained))]
