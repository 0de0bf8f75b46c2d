"""One arm of the ablation: tasks outside the band are rewritten once each, and parent and candidate are played."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.diagnosis import SHUFFLED, DiagnosisSettings
from experiments.loop import Run, rewritten
from experiments.rewriters import random_choice
from services.env_adapter.adaptation.controllers import wanted_direction
from services.env_adapter.adaptation.diagnosis import Diagnosis
from services.env_adapter.adaptation.measurement import OpenSlot
from services.env_adapter.adaptation.proposals import ProposalWriter
from services.env_adapter.adaptation.settings import AdaptSettings, RunOutcome
from services.trainer.credit.samples import Samples
from services.trainer.loop.hooks import Measures
from services.trainer.loop.task_source import task_outcome
from triforge.config import parse
from triforge.environments.registry import family
from triforge.rollout.protocols import EnvironmentFamily, Generate
from triforge.rollout.window import Offer
from triforge.types import (
    DiagnosisNote,
    Direction,
    JudgedGroup,
    Task,
    TrainRow,
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
    """A run that trains nothing: it plays rounds until enough tasks are outside the band, then rewrites them.

    Both success rates of a rewrite are estimated with the initial policy.
    """

    def _run_document(self) -> dict[str, Any]:
        document = super()._run_document()
        self._own = parse(document)  # the arm's adaptation, which the run itself leaves out
        return document | {
            "run": document["run"] | {"eval_every": 0},
            "adaptation": {"controller": "none"},
        }

    async def more_samples(
        self, step: int, groups: Sequence[JudgedGroup], samples: Samples
    ) -> tuple[list[TrainRow], Measures]:
        """Keep the tasks outside the band; a task may come again in a later round. Leave nothing to train on."""
        for rows in samples.rows.values():
            rows.clear()
        settings = AdaptSettings.of(self._own)
        offer = Offer(round=step, step=step, versions=(0, 0))
        run = await asyncio.to_thread(self._deployment.store.get, self.run.run_id)
        for group in groups:
            counted = task_outcome(group, offer, run=run, config=self._own)
            outcome = RunOutcome.of(counted, settings)
            if direction := wanted_direction(outcome):
                self._asked.append(Asked(group.played.task, outcome, direction))
        return [], {}

    @property
    def ended(self) -> str:
        """The reason for which no further round is played."""
        assert isinstance(self._settings, DiagnosisSettings)
        return "enough tasks" if len(self._asked) >= self._settings.proposals else ""

    async def _measure(self) -> Sequence[str]:
        """Return the parts of the result; a row a proposal in `tasks`."""
        settings = self._settings
        assert isinstance(settings, DiagnosisSettings)
        self._asked: list[Asked] = []
        await self._train()
        asked = self._asked[: settings.proposals]
        writer = self._writer(asked, random_choice if settings.random_choice else None)
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
                candidate = rewritten(one.task, draft, number)
                if one.task.id not in rates:
                    rates[one.task.id] = await self.rate(one.task, settings.measured)
                row |= {
                    "kept": draft.kind == one.task.kind,
                    "parent": rates[one.task.id],
                    "candidate": await self.rate(candidate, settings.measured),
                }
            rows.append(row)
        self._result.tasks = {"rows": rows}
        return ("tasks",)

    def _writer(self, asked: Sequence[Asked], model: Generate | None) -> ProposalWriter:
        model = model or self._deployment.models.get("rewriter") or random_choice
        diagnosis = Diagnosis(model)
        if self._name == SHUFFLED:
            diagnosis = Shuffled(diagnosis, asked)
        return ProposalWriter(model, family, diagnosis=diagnosis)
