"""The page of a study that compares arms: planned tests, tables and pictures, from the results and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.report import (
    HYPOTHESES,
    Page,
    Results,
    Value,
    accepted,
    at_end,
    at_start,
    by_seed,
    cell,
    cells,
    difference,
    each_seed,
    null_control,
    of,
    planned_pairs,
    tested,
)
from experiments.settings import Arm
from triforge.algorithms.paired import Test, above_zero
from triforge.cli.terminal import markdown


def other_goals(result: Mapping[str, Any]) -> float | None:
    """Return the share of accepted rewrites that ask for another type of goal than `place`."""
    kinds: dict[str, int] = result["tasks"].get("accepted_kinds", {})
    total = sum(kinds.values())
    return 1 - kinds.get("place", 0) / total if total else None


_PLAYED: dict[str, Value] = {
    "success on training tasks, last 5 steps": of("late", "success"),
    "groups in the band, last 5 steps": of("late", "in_band"),
    "mu within tasks": of("late", "mu_within"),
    "rewrites accepted": accepted,
    "of these of other goals than `place`": other_goals,
}


def _over(name: str, first: int | None, last: int | None) -> Value:
    """Mean of a measure over some of the steps; None where no step has it."""

    def value(result: Mapping[str, Any]) -> float | None:
        found = [step[name] for step in result["steps"][first:last] if name in step]
        return sum(found) / len(found) if found else None

    return value


def _count(name: str) -> Value:
    """Sum of a measure over the steps; None where no step has it."""

    def value(result: Mapping[str, Any]) -> float | None:
        found = [step[name] for step in result["steps"] if name in step]
        return sum(found) if found else None

    return value


def _alarmed(result: Mapping[str, Any]) -> float:
    return float(sum("judge/alarm/praise" in step for step in result["steps"]))


JUDGED: dict[str, Value] = {
    "votes right (balanced), first 5 steps": _over("judge/balanced", None, 5),
    "last 5 steps": _over("judge/balanced", -5, None),
    "versions of the judge refused": _count("audit/refused"),
    "steps with the alarm": _alarmed,
}
"""Columns of studies whose judges are measured by labels."""


def trend(arms: Sequence[Mapping[int, float]]) -> Test | None:
    """Whether arms rise in their order: the linear contrast of each seed, and the t test of the contrasts above 0.

    The contrast is the slope of the values over 0, 1, 2, ... (least squares), in points an arm. Only seeds that all arms have count.
    Source: Maxwell and Delaney, Designing Experiments and Analyzing Data, chapter 13: separate error term, so that seeds which
    differ alike in all arms, and arms of unlike spread, do no harm.
    """
    middle = (len(arms) - 1) / 2
    weights = [place - middle for place in range(len(arms))]
    size = math.fsum(w * w for w in weights)
    seeds = sorted(set(arms[0]).intersection(*arms[1:]))
    return above_zero(
        [math.fsum(w * arm[s] for w, arm in zip(weights, arms, strict=True)) / size for s in seeds]
    )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Arms, tests and measures of a page.

    Attributes:
        title: of the page; `known` ends the sentence "After this page you know".
        arms: in the order of the tables; `main` are those on all seeds.
        planned: the first of each pair is to be above the second, by the first measure.
        order: arms that are to rise in this order.
        pairs: further differences that are shown.
        tuned: seeds that chose settings.
        measures: of held-out success, by name; the first one is primary.
        played: further columns of what is played.
    """

    name: str
    title: str
    known: str
    arms: Mapping[str, Arm]
    main: Sequence[str]
    planned: Sequence[tuple[str, str]]
    order: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    tuned: Sequence[int]
    measures: Mapping[str, str] = field(default_factory=dict)
    played: Mapping[str, Value] = field(default_factory=dict)

    def write(self, results: Results, steps: int, page: Page) -> str:
        """Return the whole page as Markdown, of results by arm and seed."""
        ran = [name for name in self.arms if any(arm == name for arm, _ in results)]
        played = _PLAYED | dict(self.played)
        columns = {
            f"`{arm}` {title}": by_seed(results, arm, at_end(name))
            for name, title in self.measures.items()
            for arm in ran
        }
        parts = [
            f"{steps} steps a run; experiments/results/{self.name}.md names the plan.\n",
            "## The planned tests\n",
            self._tests(results),
            "## Success\n",
            self._success(results, ran),
            "## Differences\n",
            self._differences(results),
            "## What is played\n",
            markdown(
                ("arm", *played, "unchanged tasks accepted of decided"),
                [
                    [f"`{n}`", *cells(results, n, played.values()), null_control(results, n)]
                    for n in ran
                ],
            ),
            "## Seed by seed\n",
            each_seed(page.seeds, columns),
        ]
        return page.text(self.title, self.known, results, self.tuned, parts)

    def _tests(self, results: Results) -> str:
        """Return the trend of each measure, then each planned pair on the primary one, corrected for their number."""
        primary, rows = next(iter(self.measures)), list[list[str]]()
        for name, title in self.measures.items() if self.order else ():
            rising = trend([by_seed(results, arm, at_end(name)) for arm in self.order])
            word = f"{' < '.join(self.order)}, {title}" + " (primary)" * (name == primary)
            rows.append([word, *tested(rising), "" if rising is None else f"{rising.p:.4f}"])
        pairs, verdict = planned_pairs(results, self.planned, primary, self.measures[primary])
        return (
            "Trend: the slope over the arms in their order, seed by seed. Pairs: differences seed by seed. All one-sided t tests; "
            "p of the pairs after Holm's correction for the pairs.\n\n"
            + markdown(HYPOTHESES, rows + pairs)
            + verdict
        )

    def _success(self, results: Results, ran: Sequence[str]) -> str:
        rows = [
            ["before training", "", *cells(results, self.main[0], map(at_start, self.measures))]
        ]
        for name in ran:
            seeds = sum(arm == name for arm, _ in results)
            ends = cells(results, name, map(at_end, self.measures))
            rows.append([f"{self.arms[name].title} (`{name}`)", str(seeds), *ends])
        return markdown(("arm", "seeds", *self.measures.values()), rows)

    def _differences(self, results: Results) -> str:
        rows = []
        for a, b in (*self.planned, *self.pairs):
            found = [difference(results, a, b, at_end(name)) for name in self.measures]
            if any(found):
                rows.append([f"`{a}` - `{b}`", *(cell(one, sign=True) for one in found)])
        return markdown(("difference", *self.measures.values()), rows)

    def draw(self, results: Results, folder: Path) -> dict[str, str]:
        """Draw all pictures; see `experiments.plots.drawn`."""
        from experiments.plots import curves, drawn, ends  # noqa: PLC0415  matplotlib

        shown = dict([*self.measures.items()][:5])
        band = curves(results, self.main, "in_band", "groups in the band")
        pictures = {
            "Held-out success at the end, by arm": ("success", ends(results, self.main, shown)),
            "Success on training tasks": ("steps", curves(results, self.main)),
            "Groups in the band": ("band", band),
        }  # fmt: skip
        named = {title: (f"{self.name}-{name}", draw) for title, (name, draw) in pictures.items()}
        return drawn(folder, named)
