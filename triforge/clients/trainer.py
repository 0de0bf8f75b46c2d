"""Typed client of the trainer's doors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from triforge.clients.transport import (
    error_of,
    get_json,
    http_client,
    parse_json,
    post_json,
    request,
)
from triforge.messages import Event, RunState, RunStep


class TrainerClient:
    """Runs of a deployment.

    Args:
        base_url: of the trainer, e.g. http://127.0.0.1:8004.
        transport: replaces the network in tests.
    """

    def __init__(self, base_url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = http_client(base_url, timeout_s=60.0, transport=transport)

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

    async def runs(self) -> list[RunState]:
        """All runs, newest first."""
        reply = await get_json(self._http, "/v1/runs")
        return [RunState.model_validate(item) for item in reply]

    async def run(self, run_id: str) -> RunState:
        """One run."""
        return RunState.model_validate(await get_json(self._http, f"/v1/runs/{run_id}"))

    async def steps(self, run_id: str, *, after: int = -1) -> list[RunStep]:
        """Finished steps after `after`."""
        reply = await get_json(
            self._http, f"/v1/runs/{run_id}/steps", params={"after": after, "limit": 10_000}
        )
        return [RunStep.model_validate(item) for item in reply]

    async def stop(self, run_id: str) -> RunState:
        """Ask a run to stop."""
        return RunState.model_validate(await post_json(self._http, f"/v1/runs/{run_id}/stop"))

    async def resume(self, run_id: str) -> RunState:
        """Go on with a stopped or failed run."""
        return RunState.model_validate(await post_json(self._http, f"/v1/runs/{run_id}/resume"))

    async def events(self, run_id: str, *, after: str = "0") -> AsyncIterator[tuple[str, Event]]:
        """(id, event) from the server-sent events, until the run has ended."""
        url = f"/v1/runs/{run_id}/events"
        timeout = httpx.Timeout(30.0, read=None)
        async with self._http.stream("GET", url, params={"after": after}, timeout=timeout) as reply:
            entry = after
            async for line in reply.aiter_lines():
                if line.startswith("id: "):
                    entry = line[4:]
                elif line.startswith("data: "):
                    yield entry, Event.model_validate(json.loads(line[6:]))

    async def export(self, run_id: str, path: Path) -> None:
        """Save the run's record as a Parquet file at `path`."""
        url = f"/v1/runs/{run_id}/export"
        aside = path.with_name(f".{path.name}.part")
        async with self._http.stream("GET", url, timeout=600.0) as reply:
            if reply.status_code != 200:
                await reply.aread()
                raise error_of(reply)
            with aside.open("wb") as file:
                async for chunk in reply.aiter_bytes():
                    file.write(chunk)
        aside.replace(path)
