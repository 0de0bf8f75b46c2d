"""The report on Table 1: the planned tests, tables and pictures, from the results and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.plots import curves, drawn, ends
from experiments.report import (
    HYPOTHESES,
    Page,
    Results,
    Value,
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
    tested,
)
from experiments.statistics import trend
from experiments.table1 import (
    ARMS,
    BASELINES,
    MAIN,
    ORDER,
    PLANNED,
    TUNING_SEEDS,
    Table1Settings,
)

PRIMARY = "sampled/id"
MEASURES = {
    PRIMARY: "ID, sampled", "greedy/id": "ID, greedy", "sampled/ood": "OOD, sampled", "greedy/ood": "OOD, greedy",
}  # fmt: skip


def write(results: Results, settings: Table1Settings, page: Page) -> str:
    """Return the whole page as Markdown, of results by arm and seed."""
    ran = _ran(results)
    further = [name for name in ran if name not in MAIN]
    parts = [
        f"{settings.steps} steps a run; experiments/results/table1.md names the plan.\n",
        "## Success\n",
        _success(results, MAIN),
        "## The planned tests\n",
        tests(results),
        *(
            ["## Further arms\n", _success(results, further), _comparisons(results)]
            if further
            else []
        ),
        "## What is played\n",
        _loop(results),
        "## Seed by seed\n",
        _by_seed(results, page.seeds),
    ]
    title = "Outcome only, step scores, a trained reward model, adapted tasks: the paper's order on two cores"
    known = "what each part of the loop added here, in the order of the paper's Table 1"
    return page.text(title, known, results, TUNING_SEEDS, parts)


def tests(results: Results) -> str:
    """The trend of each measure; then each planned pair on the primary measure, corrected for their number."""
    rows = []
    for name, title in MEASURES.items():
        rising = trend([by_seed(results, arm, at_end(name)) for arm in ORDER])
        word = f"{' < '.join(ORDER)}, {title}" + (" (primary)" if name == PRIMARY else "")
        rows.append([word, *tested(rising), "" if rising is None else f"{rising.p:.4f}"])
    pairs, verdict = planned_pairs(results, PLANNED, PRIMARY, MEASURES[PRIMARY])
    return (
        "Trend: the slope over the arms in their order, seed by seed, in success an arm. Pairs: differences seed by seed. All one-sided "
        "t tests; p of the pairs after Holm's correction for the pairs.\n\n"
        + markdown(HYPOTHESES, rows + pairs)
        + verdict
    )


def _ran(results: Results) -> list[str]:
    return [name for name in ARMS if any(arm == name for arm, _ in results)]


def _success(results: Results, arms: Sequence[str]) -> str:
    values = [at_start(PRIMARY), *map(at_end, MEASURES)]
    rows = [[f"{ARMS[n].title} (`{n}`)", *cells(results, n, values)] for n in arms]
    return markdown(("arm", "ID, sampled: start", *MEASURES.values()), rows)


def _comparisons(results: Results) -> str:
    rows = [
        [f"`{name}` - `{base}`"]
        + [cell(difference(results, name, base, at_end(m)), sign=True) for m in MEASURES]
        for name, base in BASELINES.items()
        if name in _ran(results)
    ]
    return markdown(("difference", *MEASURES.values()), rows)


_LOOP: dict[str, Value] = {
    "mu within tasks": of("late", "mu_within"),
    "groups in the band, last 5 steps": of("late", "in_band"),
    "tasks replaced after a third": lambda result: _accepted(result, 1),
    "two thirds": lambda result: _accepted(result, 2),
    "at the end": lambda result: _accepted(result, 3),
}


def _loop(results: Results) -> str:
    rows = [
        [f"`{name}`", *cells(results, name, _LOOP.values()), null_control(results, name)]
        for name in _ran(results)
    ]
    return markdown(("arm", *_LOOP, "unchanged tasks accepted of decided"), rows)


def _accepted(result: Mapping[str, Any], thirds: int) -> float | None:
    steps = result["steps"]
    found: float | None = steps[max(len(steps) * thirds // 3, 1) - 1].get("tasks/accepted")
    return found


def _by_seed(results: Results, seeds: Sequence[int]) -> str:
    wanted = [(n, m, t) for m, t in MEASURES.items() for n in MAIN]
    return each_seed(seeds, {f"`{n}` {t}": by_seed(results, n, at_end(m)) for n, m, t in wanted})


# ---- pictures ----


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Draw all pictures; see `experiments.plots.drawn`."""
    return drawn(
        folder,
        {
            "Held-out success at the end, by arm": (
                "table1-success",
                ends(results, MAIN, MEASURES),
            ),
            "Success on training tasks": ("table1-steps", curves(results, MAIN)),
            "Accepted tasks": (
                "table1-accepted",
                curves(results, MAIN, "tasks/accepted", "accepted tasks"),
            ),
        },
    )
