"""The stores of an orchestrator, with a crash or an error planned at any place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.trainer.runs.store import RunStore
from triforge.broker import Queued, RedisBroker
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import Database
from triforge.types import (
    JudgedGroup,
    RunState,
    RunStatus,
    RunStep,
    TaskOutcome,
    TrainBatch,
    TrainedRole,
    WeightsReady,
)


class Killed(BaseException):
    """The orchestrator's process died here: nothing catches this, so nothing more of it reaches the stores."""


class Troubles:
    """Planned crashes and errors by place.

    Attributes:
        visited: all places that the orchestrator has reached, in order.
    """

    def __init__(self) -> None:
        self._planned: list[tuple[str, BaseException]] = []
        self._death = 0
        self.visited: list[str] = []

    def plan(self, place: str, error: BaseException, *, times: int = 1) -> None:
        """Raise an error at the next visits."""
        self._planned += [(place, error)] * times

    def kill_at(self, number: int) -> None:
        """Kill the orchestrator at the `number`-th place from now on, counted from 1."""
        self._death = len(self.visited) + number

    def meet(self, place: str) -> None:
        self.visited.append(place)
        if len(self.visited) == self._death:
            raise Killed(place)
        for item in self._planned:
            if item[0] == place:
                self._planned.remove(item)
                raise item[1]


class FragileStore(RunStore):
    """A run store whose process may die before and after each write."""

    def __init__(self, database: Database, troubles: Troubles) -> None:
        super().__init__(database)
        self._troubles = troubles

    def take(self, run_id: str) -> RunState:
        self._troubles.meet("take")
        return super().take(run_id)

    def begin(self, run_id: str, *, state: dict[str, Any], versions: Any) -> None:
        self._troubles.meet("begin")
        super().begin(run_id, state=state, versions=versions)
        self._troubles.meet("begun")

    def note(self, run_id: str, name: str, value: Any) -> None:
        self._troubles.meet("note")
        super().note(run_id, name, value)
        self._troubles.meet("noted")

    def add_weights(
        self, run_id: str, role: TrainedRole, version: int, uri: str, digest: str, **how: Any
    ) -> None:
        self._troubles.meet("add weights")
        super().add_weights(run_id, role, version, uri, digest, **how)

    def commit_step(
        self,
        step: RunStep,
        state: dict[str, Any] | None = None,
        reason: str = "",
        lines: Sequence[dict[str, Any]] = (),
    ) -> bool:
        self._troubles.meet("commit")
        written = super().commit_step(step, state, reason, lines)
        self._troubles.meet("committed")
        return written

    def set_status(self, run_id: str, status: RunStatus, reason: str = "") -> None:
        self._troubles.meet(f"set {status}")
        super().set_status(run_id, status, reason)


class FragileBroker(RedisBroker):
    """The orchestrator's own view of the server; it may die before each message."""

    def __init__(self, redis_url: str, troubles: Troubles) -> None:
        super().__init__(redis_url)
        self._troubles = troubles

    async def send(self, job: Queued) -> None:
        self._troubles.meet("send adapt" if isinstance(job, TaskOutcome) else "send rollout")
        await super().send(job)

    async def judged_group(self, group_id: str) -> JudgedGroup | None:
        self._troubles.meet("collect")
        return await super().judged_group(group_id)

    async def announce(self, message: TrainBatch | WeightsReady) -> None:
        self._troubles.meet(f"announce batch of {message.role}")
        await super().announce(message)

    async def read_weights(
        self, after: str, *, block_s: float = 1.0
    ) -> list[tuple[str, WeightsReady]]:
        self._troubles.meet("read weights")
        return await super().read_weights(after, block_s=block_s)

    async def forget_group(self, group_id: str, trajectory_ids: Sequence[str]) -> None:
        self._troubles.meet("forget")
        await super().forget_group(group_id, trajectory_ids)

    async def retire_group(self, group_id: str, trajectory_ids: Sequence[str]) -> None:
        self._troubles.meet("forget")
        await super().retire_group(group_id, trajectory_ids)

    async def emit(
        self, kind: str, *, run_id: str = "", step: int | None = None, **data: Any
    ) -> None:
        self._troubles.meet(f"emit {kind}")
        await super().emit(kind, run_id=run_id, step=step, **data)


class FragileArtifacts(ArtifactStore):
    """An artifact store whose writer may die."""

    def __init__(self, url: str, troubles: Troubles) -> None:
        super().__init__(url)
        self._troubles = troubles

    def write(self, name: str, data: bytes) -> str:
        self._troubles.meet("write")
        return super().write(name, data)
