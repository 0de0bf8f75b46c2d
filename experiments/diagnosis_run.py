"""One arm of the ablation: tasks outside the band are rewritten once each, and parent and candidate are played."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.diagnosis import SHUFFLED, DiagnosisSettings
from experiments.loop import Run
from experiments.loop import play as play_run
from experiments.record import Models, Result, Tell, silent
from experiments.rewriters import random_choice
from experiments.settings import Arm, Settings
from services.env_adapter.adaptation.controllers import wanted_direction
from services.env_adapter.adaptation.diagnosis import Diagnosis
from services.env_adapter.adaptation.measurement import OpenSlot
from services.env_adapter.adaptation.proposals import ProposalWriter
from services.env_adapter.adaptation.settings import AdaptSettings, RunOutcome
from services.trainer.loop.task_source import task_outcome
from triforge.environments.registry import family
from triforge.rollout.protocols import EnvironmentFamily, Generate
from triforge.rollout.window import Offer
from triforge.types import (
    DiagnosisNote,
    Direction,
    Task,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A task outside the band, and which way it should be rewritten."""

    task: Task
    outcome: RunOutcome
    direction: Direction


class Shuffled(Diagnosis):
    """Explains every task by the attempts at the next one that is to change the same way."""

    def __init__(self, inner: Diagnosis, asked: Sequence[Asked]) -> None:
        self._inner = inner
        self._next: dict[str, Asked] = {}
        for direction in ("harder", "easier"):
            one_way = list({a.task.id: a for a in asked if a.direction == direction}.values())
            for here, after in zip(one_way, one_way[1:] + one_way[:1], strict=True):
                self._next[here.task.id] = after

    async def explain(
        self,
        family: EnvironmentFamily,
        task: Task,
        notes: Sequence[DiagnosisNote],  # noqa: ARG002 (that is the point)
        direction: Direction,
        settings: AdaptSettings,
        seed: int,
    ) -> tuple[str, ...]:
        """Return the diagnosis of the other task."""
        other = self._next[task.id]
        return await self._inner.explain(
            family, other.task, other.outcome.notes, direction, settings, seed
        )


class DiagnosisRun(Run):
    """Plays the pool, rewrites what is outside the band, and estimates both success rates with the given policy."""

    async def play(self) -> Result:
        """Return the whole arm; a row a proposal in `tasks`."""
        assert isinstance(self._settings, DiagnosisSettings)
        started, result = time.monotonic(), Result(self._name, self._seed)
        asked = await self._asked(self._settings.proposals)
        writer = self._writer(asked)
        rates: dict[str, list[int]] = {}
        rows: list[dict[str, Any]] = []
        for number, one in enumerate(asked):
            slot = OpenSlot(parent=one.task, root=one.task, earlier=(one.task,))
            proposal, draft = await writer.write(one.outcome, one.direction, slot)
            row: dict[str, Any] = {
                "direction": one.direction,
                "reason": proposal.reason,
                "diagnosis": proposal.diagnosis,
            }
            if draft is not None:
                changed = {
                    "params": draft.params,
                    "instruction": draft.instruction,
                    "kind": draft.kind,
                }
                candidate = one.task.model_copy(update={"id": f"candidate-{number}", **changed})
                if one.task.id not in rates:
                    rates[one.task.id] = await self.rate(one.task, self._settings.measured)
                row |= {
                    "kept": draft.kind == one.task.kind,
                    "parent": rates[one.task.id],
                    "candidate": await self.rate(candidate, self._settings.measured),
                }
            rows.append(row)
        result.tasks = {"rows": rows}
        result.seconds = time.monotonic() - started
        rest = ("arm", "seed", "tasks", "seconds")
        self._tell({name: getattr(result, name) for name in rest})
        return result

    def _writer(self, asked: Sequence[Asked]) -> ProposalWriter:
        assert isinstance(self._settings, DiagnosisSettings)
        model: Generate = random_choice
        if not self._settings.random_choice and self._rewriter is not None:
            model = self._rewriter
        diagnosis = Diagnosis(model)
        if self._name == SHUFFLED:
            diagnosis = Shuffled(diagnosis, asked)
        return ProposalWriter(model, family, diagnosis=diagnosis)

    async def _asked(self, count: int) -> list[Asked]:
        """So many tasks outside the band, from as many rounds as it takes; a task may come again in a later round."""
        found: list[Asked] = []
        for step in range(1, self._config.run.steps + 1):
            planned = (await self._env.plan([step]))[step]
            groups = await asyncio.gather(*(self._play_group(task) for task in planned))
            offer = Offer(round=step, step=step, versions=(0, 0))
            settings = AdaptSettings.of(self._config)
            for group in groups:
                counted = task_outcome(group, offer, run=self._run, config=self._config)
                outcome = RunOutcome.of(counted, settings)
                if direction := wanted_direction(outcome):
                    found.append(Asked(group.played.task, outcome, direction))
            if len(found) >= count:
                break
        return found[:count]


def play(
    name: str, arm: Arm, seed: int, settings: Settings, models: Models, *, tell: Tell = silent
) -> Result:
    """Play one arm in this process."""
    return play_run(name, arm, seed, settings, models, tell=tell, make=DiagnosisRun)
