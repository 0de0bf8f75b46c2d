"""Typed client of the trainer's APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from triforge.clients.transport import ServiceClient, save, segment, streamed
from triforge.errors import InputError, UnavailableError
from triforge.retry import Attempts, RetryPolicy
from triforge.types import (
    Event,
    RunState,
    RunStep,
    TrainedRole,
    TrajectoryPage,
    TrajectorySummary,
    WeightsRecord,
)

_SILENCE_S = 30.0  # the trainer sends a line every second


class TrainerClient(ServiceClient):
    """Runs of a deployment; `patience_s` bounds the tries when the stream of events breaks off."""

    def __init__(
        self,
        base_url: str,
        *,
        patience_s: float = 60.0,
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, timeout_s=60.0, api_key=api_key, transport=transport)
        self._patience = RetryPolicy(first_s=min(1.0, patience_s), deadline_s=patience_s)

    async def submit(
        self,
        pool: str,
        *,
        name: str = "",
        config: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> RunState:
        """Queue a run."""
        body = {"pool": pool, "name": name, "config": config or {}}
        headers = {"Idempotency-Key": key} if key else {}
        return await self._post(RunState, "/v1/runs", body, headers=headers)

    async def runs(self, newest: int | None = None) -> list[RunState]:
        """Return all runs, or so many of the newest, newest first."""
        return [run async for run in self._list(RunState, "/v1/runs", most=newest)]

    async def run(self, run_id: str) -> RunState:
        """Return a run."""
        return await self._get(RunState, f"/v1/runs/{segment(run_id)}")

    async def steps(self, run_id: str, *, after: int = -1) -> list[RunStep]:
        """Return the finished steps after `after`."""
        path = f"/v1/runs/{segment(run_id)}/steps"
        return [step async for step in self._list(RunStep, path, {"after": str(after)})]

    async def trajectories(self, run_id: str, **wanted: str) -> TrajectoryPage:
        """Return the first page of the rollouts that meet these filters."""
        path = f"/v1/runs/{segment(run_id)}/trajectories"
        return await self._get(TrajectoryPage, path, params=wanted)

    async def all_trajectories(self, run_id: str, **filters: str) -> list[TrajectorySummary]:
        """Return all rollouts that meet these filters."""
        path = f"/v1/runs/{segment(run_id)}/trajectories"
        rows = self._list(TrajectorySummary, path, filters, pages=TrajectoryPage)
        return [row async for row in rows]

    async def stop(self, run_id: str) -> RunState:
        """Request a run to stop."""
        return await self._post(RunState, f"/v1/runs/{segment(run_id)}/stop")

    async def resume(self, run_id: str) -> RunState:
        """Queue a stopped or failed run again."""
        return await self._post(RunState, f"/v1/runs/{segment(run_id)}/resume")

    async def weights(self, run_id: str) -> list[WeightsRecord]:
        """Return the weight versions of a run."""
        path = f"/v1/runs/{segment(run_id)}/weights"
        return [row async for row in self._list(WeightsRecord, path)]

    async def roll_back(self, run_id: str, role: TrainedRole, version: int) -> RunState:
        """Roll a stopped run's model back to an older version."""
        body = {"role": role, "version": version}
        return await self._post(RunState, f"/v1/runs/{segment(run_id)}/rollback", body)

    async def events(self, run_id: str) -> AsyncIterator[tuple[str, Event]]:
        """Yield (id, event) from the server-sent events until the run has ended.

        A stream that breaks off (the trainer or Valkey restarts) continues after the last event.
        """
        entry = arrived = "0"
        attempts = Attempts(self._patience)
        while True:
            try:
                async for line in self._event_lines(run_id, entry):
                    attempts.succeeded()
                    if line.startswith("id: "):
                        arrived = line[4:]
                    elif line.startswith("data: "):
                        entry = arrived
                        yield entry, Event.model_validate_json(line[6:])
                return
            except UnavailableError as error:
                await attempts.failed(error)

    async def _event_lines(self, run_id: str, after: str) -> AsyncIterator[str]:
        url, params = f"/v1/runs/{segment(run_id)}/events", {"after": after}
        async with streamed(self._http, "GET", url, params=params, timeout=_SILENCE_S) as response:
            async for line in response.aiter_lines():
                yield line

    async def export(self, run_id: str, path: Path, *, step: int | None = None) -> None:
        """Save the run's record, or that of one step, as a Parquet file, whole or not at all."""
        only = {} if step is None else {"step": str(step)}
        await save(self._parts(f"/v1/runs/{segment(run_id)}/export", **only), path)

    async def report(self, run_id: str, path: Path) -> None:
        """Save all finished steps as one file, whole or not at all: Parquet or JSON lines, by its suffix."""
        form = path.suffix.removeprefix(".")
        if form not in ("parquet", "jsonl"):
            raise InputError(f"given {path}, expected a file that ends in .parquet or .jsonl")
        await save(self._parts(f"/v1/runs/{segment(run_id)}/report", form=form), path)
