"""The parts of an orchestrator: clients and stores. `__main__` gives the real ones, tests give fakes."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
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

log = logging.getLogger(__name__)

_CHECK_S = 0.25  # seconds between questions whether the run is to stop


class StopRequested(Exception):  # noqa: N818 (a signal, not a failure)
    """A request to stop the run, with the reason as its message. An unfinished step is not committed; a resumed run repeats it."""


class PlanApi(Protocol):
    """The part of env_adapter's client that the orchestrator needs."""

    async def plan(self, pool_id: str, wanted: PlanRequest) -> list[PlannedGroup]:
        """Return the step's groups; the same for the same run, step and kind."""


class WeightsApi(ServedWeights, Protocol):
    """The part of a policy service's client that the orchestrator needs."""

    async def release_memory(self) -> WeightsState:
        """Have the engines give their memory back."""

    async def resume_memory(self) -> WeightsState:
        """Have engines that gave their memory back serve again."""

    async def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Sample from the active version, or score prompts."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The clients and stores of an orchestrator."""

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
        """Emit the event of a landed group; an error of the broker does not concern the run."""
        task, played = group.played.group, group.played.trajectories
        successes, measured = accuracy([trajectory.outcome.value for trajectory in played])
        scores = [trajectory.score for trajectory in played if trajectory.score is not None]
        lost = [t.outcome.error for t in played if not t.measured and t.outcome.error]
        with contextlib.suppress(TriforgeError):
            await self.emit(
                "group",
                run_id,
                step=task.step,
                purpose=task.purpose,
                successes=successes if measured else None,
                score=math.fsum(scores) / len(scores) if scores else None,
                measured=len(scores),
                done=done,
                total=total,
                failures={error.raised or error.kind: error.detail for error in lost},
            )


def seldom(check: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Return a check that callers may await hundreds of times a second; it asks the database once in `_CHECK_S`."""
    last = -math.inf

    async def checked() -> None:
        nonlocal last
        if time.monotonic() - last >= _CHECK_S:
            last = time.monotonic()
            await check()

    return checked


async def clean_up(work: Coroutine[Any, Any, None]) -> None:
    """Await a deletion; its error costs space, but must not fail a run whose step is committed."""
    try:
        await work
    except TriforgeError as error:
        log.warning("leftovers stay: %s", error.detail)
