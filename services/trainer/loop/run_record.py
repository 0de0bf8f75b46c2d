"""Commits of a run's steps: the record of samples, one row in the database, then log, events and trackers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from services.trainer.loop.gauges import PROGRESS, STEPS
from services.trainer.loop.parts import Parts
from services.trainer.loop.untrained import untrained, untrained_judge
from services.trainer.runs.trackers import Reporting
from triforge.algorithms.alarms import alarms
from triforge.store.step_records import step_record_name, write_step_records
from triforge.telemetry import about
from triforge.types import RunState, RunStep, TrainedRole

log = logging.getLogger(__name__)

# measures in the log line of a step; `GET /v1/runs/{id}/steps` has all
_LOGGED = [
    "success", "score", "eval/greedy", "judge/outcome", "infrastructure_failures", "retries", "resent",
]  # fmt: skip


class RunRecord:
    """The record of one run; its trackers follow."""

    def __init__(self, parts: Parts, run: RunState, trackers: Reporting) -> None:
        self._parts, self._run, self._trackers = parts, run, trackers
        self._answer = ""
        adapter = run.config.get("env_adapter", {})
        self._untrained: Callable[..., str] = partial(
            untrained, admissible_only=bool(adapter.get("admissible_only"))
        )
        if run.by_trainer:  # trains its policy itself
            self._untrained = lambda steps, _: untrained_judge(steps)

    async def write(
        self, step: int, records: Sequence[dict[str, Any]], origin: Mapping[str, Any]
    ) -> dict[str, str]:
        """Write the step record and its origin; return its place, as an artifact of the step."""
        self._answer = next((str(record["response"]) for record in records), "")
        name = step_record_name(self._run.id, step)
        write = partial(write_step_records, self._parts.artifacts, name, records, origin)
        uri = await asyncio.to_thread(write)
        return {"step_record": uri}

    async def commit(
        self,
        step: int,
        notes: dict[str, Any] | None,
        versions: Mapping[TrainedRole, int],
        measures: dict[str, float],
        artifacts: dict[str, str],
        lines: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Move the run to a step, with the orchestrator's notes and a line for each trajectory, in one transaction; then report it.

        The note on a step that trained the policy (where a trainer has it, the judge) on nothing, and alarms, are the run's reason until the next step.
        """
        policy, reward = versions["policy"], versions["reward"]
        record = RunStep(
            run_id=self._run.id,
            step=step,
            at=time.time(),
            policy_version=policy,
            reward_version=reward,
            further={r: v for r, v in versions.items() if r not in ("policy", "reward")},
            metrics=measures,
            artifacts=artifacts,
        )
        note = self._untrained([measures], self._answer) if step else ""
        alarm = "; ".join(alarms(measures).values())
        reason = "; ".join(filter(None, (note, alarm)))
        await asyncio.to_thread(self._parts.store.commit_step, record, notes, reason, lines)
        STEPS.show(record, self._run.pool_id)
        PROGRESS.set_to_current_time()
        with about(step=step, policy=policy, reward=reward):
            numbers = [f"{name} {measures[name]:.4g}" for name in _LOGGED if name in measures]
            log.info("step %d is committed: %s", step, ", ".join(numbers))
            if note:
                log.warning("step %d %s", step, note)
            if alarm:
                log.warning("step %d: %s", step, alarm)
        await self._trackers.update()
        texts = {name: text for name, text in (("note", note), ("alarm", alarm)) if text}
        emit, served = self._parts.emit, dict(versions)
        await emit("step", self._run.id, step=step, metrics=measures, versions=served, **texts)

    async def ending(self) -> str:
        """Return the reason of a run whose steps are all committed: empty, or that they trained the policy on nothing."""
        steps = await asyncio.to_thread(self._parts.store.steps, self._run.id)
        why = self._untrained((step.metrics for step in steps if step.step), self._answer)
        return f"finished without training: {why}" if why else ""
