"""Typed client of the trainer's APIs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from triforge.clients.transport import (
    get_json,
    http_client,
    parse_json,
    post_json,
    request,
    segment,
    streamed,
)
from triforge.errors import InputError, StorageError, UnavailableError
from triforge.types import (
    Event,
    RunPage,
    RunRollback,
    RunState,
    RunStep,
    TrainedRole,
    WeightsRecord,
)

_PAGE = 1000  # runs that are asked for at a time
_PAUSE_S = 1.0  # before a stream that broke off is taken up again
_SILENCE_S = 30.0  # the trainer says something every second, if only that nothing is new


class TrainerClient:
    """Runs of a deployment. `patience_s` is how long to go on trying when the stream of events breaks off."""

    def __init__(
        self,
        base_url: str,
        *,
        patience_s: float = 60.0,
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = http_client(base_url, timeout_s=60.0, transport=transport, api_key=api_key)
        self._patience_s = patience_s

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

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
        reply = await request(self._http, "POST", "/v1/runs", body=body, headers=headers)
        return RunState.model_validate(parse_json(reply))

    async def runs(self, newest: int | None = None) -> list[RunState]:
        """All runs, newest first, or so many of the newest."""
        found: list[RunState] = []
        cursor: str | None = None
        while newest is None or len(found) < newest:
            limit = _PAGE if newest is None else min(_PAGE, newest - len(found))
            query = {"cursor": cursor, "limit": limit}
            page = RunPage.model_validate(await get_json(self._http, "/v1/runs", params=query))
            found += page.runs
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def run(self, run_id: str) -> RunState:
        """One run."""
        return RunState.model_validate(await get_json(self._http, f"/v1/runs/{segment(run_id)}"))

    async def steps(self, run_id: str, *, after: int = -1) -> list[RunStep]:
        """Finished steps after `after`."""
        reply = await get_json(
            self._http,
            f"/v1/runs/{segment(run_id)}/steps",
            params={"after": after, "limit": 10_000},
        )
        return [RunStep.model_validate(item) for item in reply]

    async def stop(self, run_id: str) -> RunState:
        """Ask a run to stop."""
        return RunState.model_validate(
            await post_json(self._http, f"/v1/runs/{segment(run_id)}/stop")
        )

    async def resume(self, run_id: str) -> RunState:
        """Go on with a stopped or failed run."""
        return RunState.model_validate(
            await post_json(self._http, f"/v1/runs/{segment(run_id)}/resume")
        )

    async def weights(self, run_id: str) -> list[WeightsRecord]:
        """The weight versions of a run."""
        reply = await get_json(self._http, f"/v1/runs/{segment(run_id)}/weights")
        return [WeightsRecord.model_validate(item) for item in reply]

    async def roll_back(self, run_id: str, role: TrainedRole, version: int) -> RunState:
        """Take a stopped run's model back to an older version."""
        body = RunRollback(role=role, version=version)
        reply = await post_json(self._http, f"/v1/runs/{segment(run_id)}/rollback", body)
        return RunState.model_validate(reply)

    async def events(self, run_id: str, *, after: str = "0") -> AsyncIterator[tuple[str, Event]]:
        """(id, event) from the server-sent events, until the run has ended.

        When the stream breaks off (the trainer or Valkey is restarted) it is taken up after the last event.
        """
        entry = arrived = after
        silent_since = time.monotonic()
        while True:
            try:
                async for line in self._event_lines(run_id, entry):
                    silent_since = time.monotonic()
                    if line.startswith("id: "):
                        arrived = line[4:]
                    elif line.startswith("data: "):
                        entry = arrived
                        yield entry, Event.model_validate(json.loads(line[6:]))
                return
            except UnavailableError:
                if time.monotonic() - silent_since > self._patience_s:
                    raise
            await asyncio.sleep(min(_PAUSE_S, self._patience_s))

    async def _event_lines(self, run_id: str, after: str) -> AsyncIterator[str]:
        url = f"/v1/runs/{segment(run_id)}/events"
        params = {"after": after}
        async with streamed(self._http, "GET", url, params=params, timeout=_SILENCE_S) as reply:
            async for line in reply.aiter_lines():
                yield line

    async def export(self, run_id: str, path: Path) -> None:
        """Save the run's record as a Parquet file at `path`, whole or not at all."""
        await self._save(f"/v1/runs/{segment(run_id)}/export", path)

    async def report(self, run_id: str, path: Path) -> None:
        """Save all finished steps as one file at `path`, whole or not at all: Parquet, or JSON lines by its suffix."""
        form = path.suffix.removeprefix(".")
        if form not in ("parquet", "jsonl"):
            raise InputError(f"given {path}, expected a file that ends in .parquet or .jsonl")
        await self._save(f"/v1/runs/{segment(run_id)}/report?form={form}", path)

    async def _save(self, url: str, path: Path) -> None:
        aside = path.with_name(f".{path.name}.part")
        try:
            with aside.open("wb") as file:
                async for chunk in self._chunks(url):
                    file.write(chunk)
            aside.replace(path)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
        finally:
            aside.unlink(missing_ok=True)

    async def _chunks(self, url: str) -> AsyncIterator[bytes]:
        async with streamed(self._http, "GET", url, timeout=600.0) as reply:
            async for chunk in reply.aiter_bytes():
                yield chunk
