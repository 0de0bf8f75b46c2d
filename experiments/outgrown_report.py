"""The report on tasks that are too easy soon: the planned tests, tables and pictures, from the results and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.outgrown import ARMS, MAIN, PLANNED, TUNING_SEEDS, OutgrownSettings
from experiments.plots import curves, drawn, ends
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
    markdown,
    null_control,
    of,
    planned_pairs,
)
from experiments.statistics import paired

PRIMARY = "sampled"
KINDS = {
    "": "all", "/id": "the pool's", "/rooms": "larger rooms", "/goals": "other goals", "/both": "both",
}  # fmt: skip
"""Held-out tasks, by the end of a measure's name."""
MODES = ("sampled", "greedy")
_READING = """
**How to read it.** Arms that adapt may train on the types of goals that half of the held-out tasks ask for; `O` and `N` may not, and partly forget them (there
is no KL term). So a difference says that adaptation brought useful tasks into a narrow pool. It does not say that measuring beats plain variety, or a pool that had these
goals from the start, and the regime was chosen after others in which adapting did not pay. Tasks of the kind "larger rooms" hardly come into any arm's pool.
"""


def write(results: Results, settings: OutgrownSettings, page: Page) -> str:
    """Return the whole page as Markdown, of results by arm and seed."""
    ran = [name for name in ARMS if any(arm == name for arm, _ in results)]
    rows, verdict = planned_pairs(results, PLANNED, PRIMARY, "all held-out tasks, sampled")
    parts = [
        f"{settings.steps} steps a run; experiments/results/outgrown.md names the plan.\n",
        "## The planned tests\n",
        "Differences seed by seed, each with its two-sided interval, uncorrected; one-sided t tests, p after Holm's correction for the pairs.\n",
        markdown(HYPOTHESES, rows) + verdict,
        _READING,
        "## Success\n",
        *(f"{mode.capitalize()}:\n\n{_success(results, ran, mode)}" for mode in MODES),
        "## Differences\n",
        _differences(results, ran),
        "## What is played\n",
        _loop(results, ran),
        "## Seed by seed\n",
        each_seed(
            page.seeds, {f"`{n}` {m}": by_seed(results, n, at_end(m)) for m in MODES for n in MAIN}
        ),
    ]
    title = "Tasks that are too easy soon: what adapting them adds"
    known = "what rewriting tasks adds here once a policy has outgrown its pool"
    return page.text(title, known, results, TUNING_SEEDS, parts)


def table(results: Results) -> str:
    """Success of outcome only on another pool."""
    return "\n".join(
        f"{mode.capitalize()}:\n\n{_success(results, MAIN[:1], mode)}" for mode in MODES
    )


def _success(results: Results, arms: Sequence[str], mode: str) -> str:
    before = [at_start(mode + kind) for kind in KINDS]
    after = [at_end(mode + kind) for kind in KINDS]
    rows = [["before training", "", *cells(results, MAIN[0], before)]]
    for name in arms:
        count = str(len(by_seed(results, name, after[0])))
        rows.append([f"{ARMS[name].title} (`{name}`)", count, *cells(results, name, after)])
    return markdown(("arm", "seeds", *KINDS.values()), rows)


def _differences(results: Results, arms: Sequence[str]) -> str:
    """Return differences between arms, and between the end and the start of each arm."""
    pairs = [*PLANNED, ("E", "A"), ("N", "O"), *((name, "A") for name in arms if name not in MAIN)]
    rows = []
    for mode in MODES:
        names = [mode + kind for kind in KINDS]
        for first, second in pairs:
            found = [difference(results, first, second, at_end(name)) for name in names]
            if any(found):
                rows.append(
                    [f"`{first}` - `{second}`, {mode}", *(cell(m, sign=True) for m in found)]
                )
        for arm in arms:
            gains = [
                paired(by_seed(results, arm, at_end(m)), by_seed(results, arm, at_start(m)))
                for m in names
            ]
            rows.append(
                [f"`{arm}` - before training, {mode}", *(cell(m, sign=True) for m in gains)]
            )
    return markdown(("difference", *KINDS.values()), rows)


def _goals(result: Mapping[str, Any]) -> float | None:
    """Return the share of accepted rewrites that ask for another type of goal than the pool."""
    kinds: dict[str, int] = result["tasks"]["accepted_kinds"]
    total = sum(kinds.values())
    return 1 - kinds.get("place", 0) / total if total else None


_LOOP: dict[str, Value] = {
    "success on training tasks, last 5 steps": of("late", "success"),
    "groups in the band, last 5 steps": of("late", "in_band"),
    "thousand rows trained on": lambda r: sum(s["rows/policy"] for s in r["steps"]) / 1000,
    "rewrites accepted": accepted,
    "of these of other goals": _goals,
}


def _loop(results: Results, arms: Sequence[str]) -> str:
    rows = [
        [f"`{name}`", *cells(results, name, _LOOP.values()), null_control(results, name)]
        for name in arms
    ]
    return markdown(("arm", *_LOOP, "unchanged tasks accepted of decided"), rows)


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Draw all pictures; see `experiments.plots.drawn`."""
    measures = {PRIMARY + kind: title for kind, title in KINDS.items()}
    return drawn(
        folder,
        {
            "Held-out success at the end, sampled, by arm": (
                "outgrown-success",
                ends(results, MAIN, measures),
            ),
            "Groups in the band": (
                "outgrown-band",
                curves(results, MAIN, "in_band", "groups in the band"),
            ),
        },
    )
