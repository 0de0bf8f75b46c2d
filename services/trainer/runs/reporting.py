"""Committed steps in experiment trackers.

They are read from the database: what a tracker has missed, because the orchestrator died or was somewhere else, it gets
when the run is taken up. A tracker that fails costs the run nothing but a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from services.trainer.runs.trackers import Rollout, Tracker, trackers_of
from triforge.config import RunConfig
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import read_rollouts
from triforge.types import RunState, RunStep

_log = logging.getLogger(__name__)

_PATIENCE_S = 120.0  # opening a run over a slow line takes long; a step must not wait for ever


class Reporting:
    """The trackers of one run. They are made, in a thread, when there is something to show.

    `steps` gives the committed steps after a step, `rollouts` some of a step. A tracker that takes longer than `patience_s` for one step is
    dropped; its thread is left behind.
    """

    def __init__(
        self,
        trackers: Sequence[Callable[[], Tracker]] = (),
        steps: Callable[[int], Sequence[RunStep]] = lambda _: (),
        rollouts: Callable[[RunStep], Sequence[Rollout]] = lambda _: (),
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._make, self._steps, self._patience_s = list(trackers), steps, patience_s
        self._rollouts = rollouts
        self._open: list[Tracker] = []

    @staticmethod
    def of(
        run: RunState,
        config: RunConfig,
        artifacts: ArtifactStore,
        steps: Callable[[int], Sequence[RunStep]],
    ) -> Reporting:
        """What the run's config asks for."""
        most = config.report.rollouts
        return Reporting(
            trackers_of(run, config, artifacts),
            steps,
            lambda step: _rollouts(artifacts, step, most),
        )

    async def update(self) -> None:
        """Show every tracker the committed steps that it has not."""
        while self._make:
            made = await self._guarded(self._make.pop(0))
            self._open += [] if made is None else [made]
        for tracker in list(self._open):
            if not await self._told(tracker):
                self._open.remove(tracker)
                await self._guarded(tracker.close, "")

    async def close(self, status: str = "") -> None:
        """The run has ended with a status, or without one is put down."""
        for tracker in self._open:
            await self._guarded(tracker.close, status)
        self._open = []

    async def _told(self, tracker: Tracker) -> bool:
        """Whether it took all steps that it has missed."""
        missed = await self._guarded(self._steps, tracker.first - 1)
        if missed is None:
            return False
        for step in missed:
            if not await self._guarded(self._show, tracker, step):
                return False
        return True

    def _show(self, tracker: Tracker, step: RunStep) -> bool:
        tracker.show(step, self._rollouts(step))
        tracker.first = step.step + 1
        return True

    async def _guarded(self, work: Callable[..., Any], *given: Any) -> Any:
        try:
            return await asyncio.wait_for(asyncio.to_thread(work, *given), self._patience_s)
        except Exception as error:  # noqa: BLE001 (the border: a tracker must not cost a run anything)
            _log.warning("a tracker is dropped: %s: %s", type(error).__name__, error)
            return None


def _rollouts(artifacts: ArtifactStore, step: RunStep, most: int) -> list[dict[str, Any]]:
    uri = step.artifacts.get("step_record")
    return read_rollouts(artifacts, uri, most) if uri and most else []
