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

PRIMARY = "sampled"
KINDS = {
    "": "all", "/id": "the pool's", "/rooms": "larger rooms", "/goals": "other goals", "/both": "both",
}  # fmt: skip
"""Held-out tasks, by the end of a measure's name."""
MODES = ("sampled", "greedy")


def write(results: Results, settings: OutgrownSettings, page: Page) -> str:
    """The whole page as Markdown, of results by arm and seed."""
    ran = [name for name in ARMS if any(arm == name for arm, _ in results)]
    rows, verdict = planned_pairs(results, PLANNED, PRIMARY, "all held-out tasks, sampled")
    parts = [
        f"The plan was there before: [outgrown-plan.md](outgrown-plan.md); {settings.steps} steps a run.\n",
        "## The planned tests\n",
        "Differences seed by seed, one-sided t tests; p after Holm's correction for the pairs.\n",
        markdown(HYPOTHESES, rows) + verdict,
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


def _success(results: Results, arms: Sequence[str], mode: str) -> str:
    rows = [
        ["before training", *cells(results, MAIN[0], [at_start(mode + kind) for kind in KINDS])],
        *(
            [f"{ARMS[n].title} (`{n}`)", *cells(results, n, [at_end(mode + k) for k in KINDS])]
            for n in arms
        ),
    ]
    return markdown(("arm", *KINDS.values()), rows)


def _differences(results: Results, arms: Sequence[str]) -> str:
    pairs = [*PLANNED, *((name, "A") for name in arms if name not in MAIN)]
    rows = [
        [f"`{first}` - `{second}`, {mode}"]
        + [
            cell(difference(results, first, second, at_end(mode + kind)), sign=True)
            for kind in KINDS
        ]
        for first, second in pairs
        for mode in MODES
    ]
    return markdown(("difference", *KINDS.values()), rows)


def _goals(result: Mapping[str, Any]) -> float | None:
    """The share of accepted rewrites that ask for another type of goal than the pool."""
    kinds: dict[str, int] = result["tasks"]["accepted_kinds"]
    total = sum(kinds.values())
    return 1 - kinds.get("place", 0) / total if total else None


_LOOP: dict[str, Value] = {
    "success on training tasks, last 5 steps": of("late", "success"),
    "groups in the band": of("late", "in_band"),
    "tasks replaced": accepted,
    "of these to other goals": _goals,
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
