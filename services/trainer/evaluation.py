"""Success on held-out tasks, sampled and greedy. Evaluation plays like training and trains nothing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial

from services.trainer.in_flight import Collector
from services.trainer.measures import success_rate
from services.trainer.parts import Parts
from services.trainer.samples import evaluation_records
from triforge.config import RunConfig
from triforge.rollout.seeds import nth_seed
from triforge.store.ledgers import write_ledger
from triforge.types import GroupTask, JudgedGroup, RunState


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came out, and where every step of it is on record; both empty when nothing was played."""

    measures: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)


class Evaluator:
    """Evaluates one run.

    Args:
        parts: env_adapter and events.
        collector: plays the groups.
        run: the run.
        config: its config.
    """

    def __init__(
        self, parts: Parts, collector: Collector, run: RunState, config: RunConfig
    ) -> None:
        self._parts = parts
        self._collector = collector
        self._run = run
        self._config = config
        self._played: list[JudgedGroup] = []

    async def evaluate(self, step: int, version: int) -> Evaluation:
        """Play the held-out tasks with a policy version once sampled and, if asked, once greedily.

        Its measures are `eval/sampled`, `eval/greedy`, the number of measured episodes of each and the seconds. Nothing is
        played when evaluation is off or the pool has no held-out tasks.
        """
        run, config = self._run, self._config
        if config.run.eval_every == 0 or config.run.eval_tasks == 0:
            return Evaluation()
        started = time.monotonic()
        plan = await self._parts.env_adapter.plan(
            run.pool_id,
            run_id=run.id,
            step=step,
            kind="evaluate",
            groups=config.run.eval_tasks,
            seed=config.run.seed,
            max_pending=0,
        )
        if not plan:
            return Evaluation()
        modes = ("sampled", "greedy") if config.run.eval_greedy else ("sampled",)
        tasks = [
            self._task(step, mode, index, group.task_id)
            for mode in modes
            for index, group in enumerate(plan)
        ]
        groups = await self._collector.gather(
            tasks,
            deadline_s=config.run.step_deadline_s,
            versions={"policy": version},
            arrived=partial(self._parts.emit_group, run.id),
        )
        measures = {"seconds/evaluate": time.monotonic() - started}
        for number, mode in enumerate(modes):
            part = groups[number * len(plan) : (number + 1) * len(plan)]
            successes, measured = success_rate(part)
            measures[f"eval/{mode}_episodes"] = float(measured)
            if measured:
                measures[f"eval/{mode}"] = successes / measured
        self._played += groups
        uri = await asyncio.to_thread(
            write_ledger,
            self._parts.artifacts,
            f"runs/{run.id}/evaluations/{step:05d}.parquet",
            evaluation_records(
                groups, algorithm=config.algorithm.resolved(), version=version, step=step
            ),
        )
        await self._parts.emit("evaluation", run.id, step=step, metrics=measures)
        return Evaluation(measures, {"evaluation": uri})

    def _task(self, step: int, mode: str, index: int, task_id: str) -> GroupTask:
        config = self._config
        return GroupTask(
            group_id=f"{self._run.id}-{step:05d}-{mode}-{index:04d}",
            run_id=self._run.id,
            step=step,
            task_id=task_id,
            purpose="evaluate",
            rollouts=1,
            votes=0,
            # the same seeds at every evaluation: a difference between two steps is then the policy's
            seed=nth_seed(config.run.seed, index),
            sampling=config.models.policy.sampling(greedy=mode == "greedy"),
            env_adapter=config.env_adapter,
            reward=config.reward,
        )

    async def tidy(self) -> None:
        """Delete the payloads of what is committed by now; until then a repeated step reads them again."""
        while self._played:
            group = self._played.pop()
            ids = tuple(t.id for t in group.played.trajectories)
            await self._parts.broker.retire_group(group.played.group.group_id, ids)
