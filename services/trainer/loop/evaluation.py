"""Success on held-out tasks, sampled and greedy. Evaluation plays like training and trains nothing."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import build_samples
from services.trainer.credit.step_records import origin_of
from services.trainer.loop.hooks import Methods
from services.trainer.loop.in_flight import InFlight
from services.trainer.loop.measures import ends, failures, scores, success_rate
from services.trainer.loop.parts import Parts
from services.trainer.loop.task_source import TaskSource
from triforge.algorithms.theory import score_interval, share_interval, wilson
from triforge.algorithms.verdict import change_of_pairs
from triforge.config import RunConfig
from triforge.store.step_records import write_step_records
from triforge.types import JudgedGroup, RunState, TrainedRole


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measures, the artifact with the record of every step, and a line for each trajectory; empty if nothing was played."""

    measures: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)


class Evaluator:
    """Evaluates one run on the held-out tasks of its pool."""

    def __init__(
        self,
        parts: Parts,
        tasks: TaskSource,
        in_flight: InFlight,
        run: RunState,
        config: RunConfig,
        methods: Methods,
    ) -> None:
        self._parts, self._tasks, self._in_flight = parts, tasks, in_flight
        self._run, self._config, self._methods = run, config, methods
        self._played: list[JudgedGroup] = []

    async def evaluate(
        self, step: int, versions: Mapping[TrainedRole, int], *, due: bool = False
    ) -> Evaluation:
        """Play the held-out tasks with these versions, sampled and perhaps greedily, if the step ends with an evaluation or one is `due`.

        Measures: `eval/sampled` and `eval/greedy`, with scores also `eval/sampled_score` and `eval/greedy_score`, their 95 %
        intervals at `/low` and `/high`, the numbers of measured episodes; at `_gain` the change since step 0, with its interval and
        pairs; the seconds, and those of methods. Nothing is played if the pool has no held-out tasks.
        """
        run, started = self._config.run, time.monotonic()
        if not (run.eval_every and run.eval_tasks):
            return Evaluation()
        if not due and step not in (0, run.steps) and step % run.eval_every:
            return Evaluation()
        modes = await self._tasks.held_out(step)
        tasks = [task for part in modes.values() for task in part]
        if not tasks:
            return Evaluation()
        count = len(tasks) // len(modes)
        play = partial(
            self._in_flight.play,
            deadline_s=run.step_deadline_s,
            versions={role: v for role, v in versions.items() if role != "reward"},
        )
        groups = await play(tasks)
        tasks = await self._methods.more_groups(step, groups[:count])
        more = await play(tasks) if tasks else []
        measures = self._methods.evaluated(groups + more)
        measures["seconds/evaluate"] = time.monotonic() - started
        for number, mode in enumerate(modes):
            measures |= mode_measures(f"eval/{mode}", groups[number * count : (number + 1) * count])
        measures |= failures("eval/failures", groups)
        self._played += groups + more
        uri, lines = await asyncio.to_thread(self._record, step, versions, groups)
        if step:
            first = await asyncio.to_thread(self._parts.store.evaluated, self._run.id, 0)
            measures |= gains(first, lines, measures)
        await self._parts.emit("evaluation", self._run.id, step=step, metrics=measures)
        return Evaluation(measures, {"evaluation": uri}, lines)

    def _record(
        self, step: int, versions: Mapping[TrainedRole, int], groups: list[JudgedGroup]
    ) -> tuple[str, list[dict[str, Any]]]:
        config, nothing = self._config, Limits(max_tokens=1, max_rows=1)
        options = SampleOptions(
            algorithm=config.algorithm.resolved,
            players={role: (versions[role], nothing) for role in config.models.players},
            judging={"reward": (0, nothing)},
            seed=0,
            step=step,
        )
        name = f"runs/{self._run.id}/evaluations/{step:05d}.parquet"
        found, origin = build_samples(groups, options), origin_of(config)
        return write_step_records(self._parts.artifacts, name, found.records, origin), found.lines

    async def discard(self) -> None:
        """Delete the payloads of committed evaluations; until then a repeated step reads them again."""
        played, self._played = self._played, []
        await self._in_flight.discard(played)


def mode_measures(name: str, groups: list[JudgedGroup]) -> dict[str, float]:
    """Return success and mean score of the measured episodes of one mode."""
    (successes, measured), values = success_rate(groups), scores(groups)
    measures = {f"{name}_episodes": float(len(values) or measured)}
    if measured:
        several = any(group.played.group.rollouts > 1 for group in groups)
        rows = [success_rate([group]) for group in groups]  # episodes of a task are not independent
        interval = share_interval(rows) if several else wilson(successes, measured)
        measures |= {name: successes / measured} | ends(name, interval)
    if values:
        measures[f"{name}_score"] = sum(values) / len(values)
        if possible := score_interval(values):
            measures |= ends(f"{name}_score", possible)
    return measures


def gains(
    first: Iterable[Mapping[str, Any]],
    lines: Iterable[Mapping[str, Any]],
    measures: Mapping[str, float],
) -> dict[str, float]:
    """Return the change of each measure since the first evaluation, over the tasks that were measured in both."""
    before, after = _by_task(first), _by_task(lines)
    found: dict[str, float] = {}
    for name in sorted(measures.keys() & after.keys() & before.keys()):
        common = [task for task in after[name] if task in before[name]]
        change = change_of_pairs([(fmean(before[name][t]), fmean(after[name][t])) for t in common])
        if change is not None:
            found |= {f"{name}_gain": change.gain, f"{name}_gain_pairs": float(change.pairs)}
            found |= ends(f"{name}_gain", (change.low, change.high))
    return found


def _by_task(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the measured successes, as 1 or 0, and scores of held-out episodes by measure and task."""
    values = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for line in lines:
        name = f"eval/{line['group_id'].rsplit('-', 2)[1]}"
        if line["outcome"] is not None:
            values[name][line["task_id"]].append(float(line["outcome"] == 1))
        if line["score"] is not None:
            values[f"{name}_score"][line["task_id"]].append(line["score"])
    return values
