"""The page of a comparison: curves of runs in one picture, options that differ, held-out tasks that only some solve."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from services.dashboard.apis import Visit, Visitor, run_path
from services.dashboard.charts import CHARTS, INTERVAL, Chart
from services.dashboard.drawing import pictures
from services.dashboard.templates import page
from triforge.errors import InputError
from triforge.types import Page, RunState, RunStep, TrajectoryPage, TrajectorySummary

router = APIRouter(default_response_class=HTMLResponse)

_MOST: Final = 4  # runs in a picture
_MEASURES: Final = (
    "eval/greedy", "eval/sampled", "eval/sampled_score", "success", "score", "policy/kl_k3", "policy/entropy",
    "groups/effective", "in_band", "judge/balanced", "judge/within_outcome", "theory/mu_within", "length", "seconds/play",
    "seconds/train",
)  # fmt: skip
_STEPS: Final = 10_000  # the trainer's limit of one response
_EPISODES: Final = 1000
_KNOWN: Final = {key: (line, chart) for chart in CHARTS for line, key in chart.series.items()}


class _Compared(NamedTuple):
    """A run, the shown measures of its steps, the episodes of its newest evaluation."""

    run: RunState
    steps: Sequence[RunStep]
    episodes: Sequence[TrajectorySummary]


@router.get("/compare")
async def compare(
    visit: Visitor,
    run: Annotated[list[str], Query(default_factory=list, max_length=50)],
    measure: Annotated[str, Query(max_length=200)] = "",
) -> str:
    """Show two runs or more together; `measure` is shown before the usual ones."""
    run_ids = [*dict.fromkeys(run)]
    if not 2 <= len(run_ids) <= _MOST:
        raise InputError(
            f"run: given {len(run_ids)} runs, expected 2 to {_MOST}: /compare?run=ID&run=ID"
        )
    shown = [*dict.fromkeys([*filter(None, [measure]), *_MEASURES])]
    compared = await asyncio.gather(*(_read(visit, run_id, shown) for run_id in run_ids))
    runs = [one.run for one in compared]
    names = [_name(one, runs) for one in runs]
    return page(
        "compare", runs=runs, names=names,
        pictures=pictures(*overlaid(shown, names, [one.steps for one in compared])), measure=measure,
        known=sorted(_KNOWN),
        differences=differing([one.config for one in runs]),
        tasks=solved_by_some([one.episodes for one in compared]),
        evaluated=[one.episodes[0].step if one.episodes else None for one in compared],
    )  # fmt: skip


async def _read(visit: Visit, run_id: str, measures: Sequence[str]) -> _Compared:
    path = run_path(run_id, "/steps")
    names = ",".join(name + end for name in measures for end in INTERVAL)
    run, steps = await asyncio.gather(
        visit.read(RunState, "trainer", run_path(run_id)),
        visit.read(Page[RunStep], "trainer", path, limit=_STEPS, measures=names),
    )
    evaluated = [step.step for step in steps.items if "evaluation" in step.artifacts]
    if not evaluated:
        return _Compared(run, steps.items, ())
    held_out = {"purpose": "evaluate", "step": evaluated[-1], "limit": _EPISODES}
    episodes = await visit.read(
        TrajectoryPage, "trainer", run_path(run_id, "/trajectories"), **held_out
    )
    return _Compared(run, steps.items, episodes.items)


def overlaid(
    measures: Sequence[str], names: Sequence[str], runs: Sequence[Sequence[RunStep]]
) -> tuple[list[Chart], list[RunStep]]:
    """Return a chart for each measure with a line for each run, and the steps with measures named `number of run/measure`."""
    merged: dict[int, dict[str, float]] = {}
    for number, steps in enumerate(runs):
        for step in steps:
            named = {f"{number}/{name}": value for name, value in step.metrics.items()}
            merged.setdefault(step.step, {}).update(named)
    charts = []
    for measure in measures:
        line, chart = _KNOWN.get(measure, ("", Chart(measure, "", {})))
        series = {name: f"{n}/{measure}" for n, name in enumerate(names)}
        title = f"{chart.title}: {line}" if line else measure
        charts.append(replace(chart, title=title, series=series, stacked=False))
    return charts, [
        RunStep(run_id="", step=n, at=0.0, policy_version=0, reward_version=0, metrics=metrics)
        for n, metrics in sorted(merged.items())
    ]


def differing(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the options that differ, with the value of each run; empty where a run has no such option."""
    flat = [_flat(config) for config in configs]
    names = sorted({name for one in flat for name in one})
    rows = [(name, [one.get(name, "") for one in flat]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def solved_by_some(
    runs: Sequence[Sequence[TrajectorySummary]],
) -> list[tuple[TrajectorySummary, list[tuple[int, int]]]]:
    """Return the tasks that each run measured and only some solved: an episode, and (successes, measured) of each run."""
    tallies: list[dict[str, list[int]]] = []
    examples: dict[str, TrajectorySummary] = {}
    for episodes in runs:
        tallies.append({})
        for row in episodes:
            if row.outcome is not None:
                tallies[-1].setdefault(row.task_id, []).append(row.outcome)
                examples.setdefault(row.task_id, row)
    solved = []
    for task, row in examples.items():
        counts = [(tally.get(task, []).count(1), len(tally.get(task, []))) for tally in tallies]
        if all(of for _, of in counts) and len({won > 0 for won, _ in counts}) > 1:
            solved.append((row, counts))
    return solved


def _flat(value: Any, name: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        parts = [_flat(inner, f"{name}.{key}" if name else key) for key, inner in value.items()]
        return {key: text for part in parts for key, text in part.items()}
    return {name: json.dumps(value)}


def _name(run: RunState, runs: Sequence[RunState]) -> str:
    """Return the name of a run, or its id if another run has the same name."""
    unique = [other.name for other in runs].count(run.name) == 1
    return run.name if run.name and unique else run.id
