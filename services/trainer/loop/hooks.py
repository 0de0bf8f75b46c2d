"""Hooks of the training loop: where a method adds to a step.

A method's `loop` part is a subclass of `LoopHooks`; every hook is optional. A step may be repeated after a crash, so each hook
gives the same result when it is called again with the same arguments. State is JSON under `notes[method.name]` and is
committed with the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.trainer.credit.samples import Samples
from services.trainer.loop.parts import Parts
from triforge.config import RunConfig
from triforge.types import GroupTask, JudgedGroup, TrainBatch, TrainedRole, TrainRow

Measures = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """What a hook may use of its run."""

    parts: Parts
    run_id: str
    config: RunConfig
    notes: dict[str, Any]  # of the orchestrator; a method's own are under its name


class LoopHooks:
    """Hooks that add nothing; a method overrides those it needs."""

    def __init__(self, run: RunContext, options: Any) -> None:
        self.run, self.options = run, options

    async def begin(self, step: int, versions: Mapping[TrainedRole, int]) -> None:
        """Prepare a step that trains on these versions."""

    def plays(self, step: int) -> bool:  # noqa: ARG002
        """Return whether the step plays training tasks."""
        return True

    async def more_groups(self, step: int, groups: Sequence[JudgedGroup]) -> list[GroupTask]:  # noqa: ARG002
        """Return tasks to play in addition to the step's groups."""
        return []

    async def more_samples(
        self,
        step: int,  # noqa: ARG002
        groups: Sequence[JudgedGroup],  # noqa: ARG002
        samples: Samples,  # noqa: ARG002
    ) -> tuple[list[TrainRow], Measures]:
        """Return rows of the policy in addition to the step's samples, and measures."""
        return [], {}

    async def batch(self, step: int, batch: TrainBatch) -> TrainBatch:  # noqa: ARG002
        """Return the batch of one model as its learner is to read it."""
        return batch

    def evaluates(self, step: int) -> bool:  # noqa: ARG002
        """Return whether the step ends with an evaluation, whatever `run.eval_every` is."""
        return False

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:  # noqa: ARG002
        """Return measures of the whole step; `stop` and `ended` are read after it."""
        return {}

    @property
    def stop(self) -> str:
        """Return why the run is to stop after this step; empty if it goes on."""
        return ""

    @property
    def ended(self) -> str:
        """Return why the run is complete before its last step; empty if it is not."""
        return ""
