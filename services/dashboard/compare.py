"""The page of a comparison: curves of runs in one picture, options that differ, held-out tasks that only some solve."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple, Self

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from services.dashboard.apis import Visit, Visitor, run_path
from services.dashboard.charts import CHARTS, INTERVAL, Chart
from services.dashboard.drawing import pictures
from services.dashboard.templates import page
from triforge.clients.transport import segment
from triforge.errors import InputError, NotFoundError
from triforge.rollout.adapting import identity
from triforge.types import Page, RunState, RunStep, Task, TrajectoryPage, TrajectorySummary

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


class Tally(NamedTuple):
    """The episodes of a task in a run: its id there, the successes, and how many were measured."""

    task_id: str
    won: int
    measured: int

    @classmethod
    def of(cls, rows: Sequence[TrajectorySummary]) -> Self:
        """Count measured episodes of one task."""
        return cls(rows[0].task_id, sum(row.outcome == 1 for row in rows), len(rows))


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
    pools = {one.pool_id for one in runs}
    same = await asyncio.gather(*(_asked(visit, pool) for pool in pools)) if len(pools) > 1 else []
    asked = {task: asks for one in same for task, asks in one.items()}
    common = in_common([one.episodes for one in compared], asked)
    return page(
        "compare", runs=runs, names=names,
        pictures=pictures(*overlaid(shown, names, [one.steps for one in compared])), measure=measure,
        known=sorted(_KNOWN),
        differences=differing([one.config for one in runs]),
        common=bool(common), tasks=[(row, counts) for row, counts in common if len({one.won > 0 for one in counts}) > 1],
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


async def _asked(visit: Visit, pool: str) -> dict[str, str]:
    """Return what each held-out task of a pool asks, whatever its id is; nothing for a pool that is gone."""
    path = f"/v1/pools/{segment(pool)}/tasks"
    try:
        tasks = await visit.read(Page[Task], "env_adapter", path, split="heldout", limit=_EPISODES)
    except NotFoundError:
        return {}
    return {task.id: f"{task.family} {identity(task.params)}" for task in tasks.items}


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


def in_common(
    runs: Sequence[Sequence[TrajectorySummary]], same: Mapping[str, str]
) -> list[tuple[TrajectorySummary, list[Tally]]]:
    """Return the tasks that each run measured: an episode, and the tally of each run. `same` names what tasks of several pools ask."""
    tallies: list[dict[str, list[TrajectorySummary]]] = []
    for episodes in runs:
        tallies.append({})
        for row in episodes:
            if row.outcome is not None:
                tallies[-1].setdefault(same.get(row.task_id, row.task_id), []).append(row)
    return [
        (rows[0], [Tally.of(tally[task]) for tally in tallies])
        for task, rows in tallies[0].items()
        if all(task in tally for tally in tallies)
    ]


def _flat(value: Any, name: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        parts = [_flat(inner, f"{name}.{key}" if name else key) for key, inner in value.items()]
        return {key: text for part in parts for key, text in part.items()}
    return {name: json.dumps(value)}


def _name(run: RunState, runs: Sequence[RunState]) -> str:
    """Return the name of a run, or its id if another run has the same name."""
    unique = [other.name for other in runs].count(run.name) == 1
    return run.name if run.name and unique else run.id
