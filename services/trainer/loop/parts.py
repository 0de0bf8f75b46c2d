"""What the orchestrator is built from. `__main__` puts the real things in, tests put fakes in."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.trainer.runs.runs import ServedWeights
from services.trainer.runs.store import RunStore
from triforge.algorithms.credit import accuracy
from triforge.broker import Broker
from triforge.config import Settings
from triforge.errors import TriforgeError
from triforge.store.artifacts import ArtifactStore
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    JudgedGroup,
    PlannedGroup,
    PlanRequest,
    TrainedRole,
    WeightsState,
)


class StopRequested(Exception):  # noqa: N818 (a signal, not a failure)
    """The run was asked to stop, or its message says why it stops; what is unfinished is not committed and will be done again on resume."""


class PlanApi(Protocol):
    """The part of env_adapter's client that the orchestrator needs."""

    async def plan(self, pool_id: str, wanted: PlanRequest) -> list[PlannedGroup]:
        """The step's groups; the same for the same run, step and kind."""


class WeightsApi(ServedWeights, Protocol):
    """The part of a policy service's client that the orchestrator needs."""

    async def release_memory(self) -> WeightsState:
        """Have its engines give their memory back."""

    async def resume_memory(self) -> WeightsState:
        """Have engines that gave their memory back serve again."""

    async def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Sample from what is served, or score prompts."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything an orchestrator talks to."""

    store: RunStore
    broker: Broker
    artifacts: ArtifactStore
    env_adapter: PlanApi
    apis: Mapping[TrainedRole, WeightsApi]
    settings: Settings

    async def emit(self, kind: str, run_id: str, *, step: int | None = None, **data: Any) -> None:
        """Put an event of this run on the stream."""
        await self.broker.emit(kind, run_id=run_id, step=step, **data)

    async def emit_group(self, run_id: str, group: JudgedGroup, done: int, total: int) -> None:
        """Say that a group has landed; that nobody can hear it costs the run nothing."""
        task, played = group.played.group, group.played.trajectories
        successes, told = accuracy([trajectory.outcome.value for trajectory in played])
        scores = [trajectory.score for trajectory in played if trajectory.score is not None]
        with contextlib.suppress(TriforgeError):
            await self.emit(
                "group",
                run_id,
                step=task.step,
                purpose=task.purpose,
                successes=successes if told else None,
                score=math.fsum(scores) / len(scores) if scores else None,
                measured=len(scores),
                done=done,
                total=total,
            )
