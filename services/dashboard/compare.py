"""Runs beside one another: their curves in one picture, where their configs differ, which held-out tasks only one solves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from services.dashboard.apis import Apis
from services.dashboard.charts import INTERVAL, Chart
from services.dashboard.drawing import pictures
from triforge.clients.transport import segment
from triforge.errors import InputError
from triforge.types import Page, RunState, RunStep, TrajectoryPage, TrajectorySummary

MOST: Final = 4  # runs in a picture, as many as there are colours
MEASURES: Final = (
    "eval/sampled", "eval/greedy", "success", "score", "judge/balanced", "judge/within_outcome", "theory/mu_within",
    "in_band", "length", "seconds/play", "seconds/train",
)  # fmt: skip
_STEPS: Final = 10_000  # what the trainer gives at once
_EPISODES: Final = 1000
_NAMED: Final = 20  # newest steps, whose measures can be chosen: evaluations are not of every step


class Compare:
    """The page; `draw` fills a template."""

    def __init__(self, apis: Apis, page: Callable[..., str]) -> None:
        self._apis, self._page = apis, page

    async def runs(self, key: str, run_ids: Sequence[str], measure: str) -> str:
        """Two runs or more; `measure` is one to look at beside the usual ones."""
        wanted = [*dict.fromkeys(run_ids)]
        if not 2 <= len(wanted) <= MOST:
            raise InputError(
                f"run: given {len(wanted)} runs, expected 2 to {MOST}: /compare?run=ID&run=ID"
            )
        shown = [*dict.fromkeys([*filter(None, [measure]), *MEASURES])]
        found = await asyncio.gather(*(self._run(key, run_id, shown) for run_id in wanted))
        runs, steps, newest, episodes = zip(*found, strict=True)
        names = [_name(run, runs) for run in runs]
        return self._page(
            "compare", runs=runs, names=names, pictures=pictures(*overlaid(shown, names, steps)), measure=measure,
            known=sorted({name for own in newest for step in own for name in step.metrics}),
            differences=differing([run.config for run in runs]), tasks=solved_by_some(episodes),
            evaluated=[own[0].step if own else None for own in episodes],
        )  # fmt: skip

    async def _run(
        self, key: str, run_id: str, measures: Sequence[str]
    ) -> tuple[RunState, list[RunStep], list[RunStep], list[TrajectorySummary]]:
        """A run, these measures of its steps, all measures of its newest ones, and the episodes of its newest evaluation."""
        path = f"/v1/runs/{segment(run_id)}"
        names = ",".join(name + end for name in measures for end in INTERVAL)
        run, page = await asyncio.gather(
            self._apis.read(RunState, "trainer", path, key),
            self._apis.read(Page[RunStep], "trainer", f"{path}/steps", key, limit=_STEPS, measures=names),
        )  # fmt: skip
        after = max(run.step - _NAMED, -1)
        last = await self._apis.read(Page[RunStep], "trainer", f"{path}/steps", key, after=after)
        evaluated = max(
            (step.step for step in page.items if "evaluation" in step.artifacts), default=-1
        )
        if evaluated < 0:
            return run, [*page.items], [*last.items], []
        held = {"purpose": "evaluate", "step": evaluated, "limit": _EPISODES}
        episodes = await self._apis.read(
            TrajectoryPage, "trainer", f"{path}/trajectories", key, **held
        )
        return run, [*page.items], [*last.items], [*episodes.items]


def overlaid(
    measures: Sequence[str], names: Sequence[str], runs: Sequence[Sequence[RunStep]]
) -> tuple[list[Chart], list[RunStep]]:
    """A chart a measure with a line a run, and the steps that they are drawn from: the measure of run n is called `n/measure`."""
    merged: dict[int, dict[str, float]] = {}
    for number, steps in enumerate(runs):
        for step in steps:
            own = merged.setdefault(step.step, {})
            own |= {f"{number}/{name}": value for name, value in step.metrics.items()}
    charts = [
        Chart(measure, "", {name: f"{n}/{measure}" for n, name in enumerate(names)})
        for measure in measures
    ]
    return charts, [
        RunStep(run_id="", step=step, at=0.0, policy_version=0, reward_version=0, metrics=metrics)
        for step, metrics in sorted(merged.items())
    ]


def differing(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Options that are not the same everywhere, with the value of each run; empty where a run has none of it."""
    flat = [_flat(config) for config in configs]
    names = sorted({name for one in flat for name in one})
    rows = [(name, [one.get(name, "") for one in flat]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def solved_by_some(
    runs: Sequence[Sequence[TrajectorySummary]],
) -> list[tuple[TrajectorySummary, list[tuple[int, int]]]]:
    """Tasks that every run measured and not every run solved: one of its episodes, and (successes, measured) of each run."""
    tallies: list[dict[str, list[int]]] = []
    shown: dict[str, TrajectorySummary] = {}
    for episodes in runs:
        tally: dict[str, list[int]] = {}
        for row in episodes:
            if row.outcome is not None:
                tally.setdefault(row.task_id, []).append(row.outcome)
                shown.setdefault(row.task_id, row)
        tallies.append(tally)
    found = []
    for task, row in shown.items():
        counts = [(tally.get(task, []).count(1), len(tally.get(task, []))) for tally in tallies]
        if all(of for _, of in counts) and len({won > 0 for won, _ in counts}) > 1:
            found.append((row, counts))
    return found


def _flat(value: Any, name: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        parts = [_flat(inner, f"{name}.{key}" if name else key) for key, inner in value.items()]
        return {key: text for part in parts for key, text in part.items()}
    return {name: json.dumps(value)}


def _name(run: RunState, runs: Sequence[RunState]) -> str:
    """What a run is called here; its id if another one has its name."""
    alone = [other.name for other in runs].count(run.name) == 1
    return run.name if run.name and alone else run.id
