"""The report on Table 1: the planned tests, tables and pictures, from the results and from nothing else."""

from __future__ import annotations

import math
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
from experiments.vote_quality import GATE, PLANTED, cosine

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
        "## The judge\n",
        gate(results),
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


def gate(results: Results) -> str:
    """Return the measures of the judge, of every arm with votes."""
    who = [(judge, policy) for policy in ("first", "last") for judge in ("first", "last")]
    on = [f"{judge} judge, {policy} step" for judge, policy in who]
    arms = [n for n in ARMS if any(r["judge"] for (arm, _), r in results.items() if arm == n)]

    def judged(name: str, first: str, **more: Value) -> str:
        found = [of("judge", f"{name}/judge_{judge}/policy_{policy}") for judge, policy in who]
        rows = [[f"`{arm}`", *cells(results, arm, [*more.values(), *found])] for arm in arms]
        return markdown((first, *more, *on), rows)

    ends = {"first 5 steps": over_steps(slice(5)), "last 5": over_steps(slice(-5, None))}
    ends |= {
        f"right in {PLANTED}, {whose} step": of(
            "judge", f"cosine_planted/judge_first/policy_{whose}"
        )
        for whose in ("first", "last")
    }
    return (
        "In groups that all fail, the cosine of the votes' advantage (z-score of a step's mean vote among those of its index) with the "
        "label, +1 if the shortest plan got shorter. In the steps by the judge as it was then; after the run by the weights that it began "
        "and ended with, on the episodes of the first step (the same for all arms of a seed) and of the last. Next to them what votes planted "
        f"on these episodes would have that are right in {PLANTED}: the gate.\n\n"
        + judged("cosine", "arm", **ends)
        + "\nAccuracy on the same episodes: of single votes, balanced over the labels; between steps of one task and index; and of single "
        "votes, balanced over the outcomes.\n\n"
        + "\n".join(judged(name, f"arm, by {name}") for name in ("label", "within", "outcome"))
    )


def over_steps(part: slice) -> Value:
    """Return the gate's cosine over some of the training steps together."""

    def value(result: Mapping[str, Any]) -> float | None:
        sums = [[step[name] for name in GATE] for step in result["steps"][part] if GATE[0] in step]
        return cosine(*map(math.fsum, zip(*sums, strict=True))) if sums else None

    return value


_LOOP: dict[str, Value] = {
    "mu within tasks": of("late", "mu_within"),
    "groups in the band, last 5 steps": of("late", "in_band"),
    "tasks replaced after a third": lambda result: _accepted(result, 1),
    "two thirds": lambda result: _accepted(result, 2),
    "at the end": lambda result: _accepted(result, 3),
    "accepted tasks solved": lambda result: solved(result, "accepted"),
    "those they began as": lambda result: solved(result, "roots"),
}


def _loop(results: Results) -> str:
    rows = [
        [f"`{name}`", *cells(results, name, _LOOP.values()), null_control(results, name)]
        for name in _ran(results)
    ]
    return (
        "Solved: the share of tasks at which a policy of another seed, warmed up on demonstrations without a mistake, succeeds in at "
        "least one of as many rollouts as a group has.\n\n"
        + markdown(("arm", *_LOOP, "unchanged tasks accepted of decided"), rows)
    )


def _accepted(result: Mapping[str, Any], thirds: int) -> float | None:
    steps = result["steps"]
    found: float | None = steps[max(len(steps) * thirds // 3, 1) - 1].get("tasks/accepted")
    return found


def solved(result: Mapping[str, Any], which: str) -> float | None:
    """Return the share of tasks that the independent policy solves."""
    rates = result["tasks"].get("solved", {}).get(which)
    return sum(wins > 0 for wins, _ in rates.values()) / len(rates) if rates else None


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
