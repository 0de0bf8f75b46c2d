"""What the pages are made of, read from the APIs with the key of whoever looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from triforge.clients.transport import (
    LOST,
    error_of,
    http_client,
    parse_json,
    segment,
    unreachable,
)
from triforge.errors import TriforgeError
from triforge.types import (
    Lineage,
    PoolPage,
    PoolState,
    ProposalDetail,
    ProposalPage,
    RunPage,
    RunState,
    RunStep,
    TaskPage,
    WeightsRecord,
)

M = TypeVar("M", bound=BaseModel)

PAGE = 50  # rows of a table
_MOST_STEPS = 10_000  # what the trainer gives at once
_ANSWER_S = 30.0
_READY_S = 3.0  # a service that needs longer to say that it is ready is not


class KeyRefusedError(TriforgeError):
    """An API asks for a key, or for another one."""

    kind = "key_refused"
    status = 401


class Apis:
    """The APIs of a deployment, asked on behalf of people.

    Args:
        addresses: URL of each service by the name that people see; `trainer` and `env_adapter` are among them.
        transport: replaces the network in tests.
    """

    def __init__(
        self, addresses: Mapping[str, str], *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._clients = {
            name: http_client(url, timeout_s=_ANSWER_S, transport=transport)
            for name, url in addresses.items()
        }
        self.addresses = dict(addresses)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients.values()))

    async def readiness(self) -> dict[str, str]:
        """What each service says of itself: `ready`, or why it is not."""
        names = list(self._clients)
        return dict(zip(names, await asyncio.gather(*map(self._ready, names)), strict=True))

    async def _ready(self, name: str) -> str:
        try:
            reply = await self._clients[name].get("/readyz", timeout=_READY_S)
        except LOST as error:
            return f"no answer ({type(error).__name__})"
        return "ready" if reply.is_success else error_of(reply).detail

    async def runs(self, key: str, cursor: str = "") -> RunPage:
        """A page of the runs, newest first."""
        return await self._read(RunPage, "trainer", key, "/v1/runs", limit=PAGE, cursor=cursor)

    async def run(self, key: str, run_id: str) -> RunState:
        """One run."""
        return await self._read(RunState, "trainer", key, f"/v1/runs/{segment(run_id)}")

    async def steps(self, key: str, run_id: str) -> list[RunStep]:
        """The finished steps of a run."""
        path = f"/v1/runs/{segment(run_id)}/steps"
        reply = await self._get("trainer", key, path, after=-1, limit=_MOST_STEPS)
        return [RunStep.model_validate(row) for row in reply]

    async def weights(self, key: str, run_id: str) -> list[WeightsRecord]:
        """The weight versions of a run."""
        reply = await self._get("trainer", key, f"/v1/runs/{segment(run_id)}/weights")
        return [WeightsRecord.model_validate(row) for row in reply]

    async def pools(self, key: str) -> PoolPage:
        """Pools by name, the first page of them."""
        return await self._read(PoolPage, "env_adapter", key, "/v1/pools", limit=PAGE)

    async def pool(self, key: str, pool: str) -> PoolState:
        """A pool by id or name."""
        return await self._read(PoolState, "env_adapter", key, f"/v1/pools/{segment(pool)}")

    async def tasks(self, key: str, pool: str, **wanted: str) -> TaskPage:
        """A page of a pool's task versions."""
        path = f"/v1/pools/{segment(pool)}/tasks"
        return await self._read(TaskPage, "env_adapter", key, path, limit=PAGE, **wanted)

    async def proposals(self, key: str, pool: str, **wanted: str) -> ProposalPage:
        """A page of a pool's rewrites."""
        path = f"/v1/pools/{segment(pool)}/proposals"
        return await self._read(ProposalPage, "env_adapter", key, path, limit=PAGE, **wanted)

    async def lineage(self, key: str, task_id: str) -> Lineage:
        """All versions of the task's slot."""
        path = f"/v1/tasks/{segment(task_id)}/lineage"
        return await self._read(Lineage, "env_adapter", key, path)

    async def proposal(self, key: str, proposal_id: str) -> ProposalDetail:
        """A rewrite with everything said, measured and done about it."""
        path = f"/v1/proposals/{segment(proposal_id)}"
        return await self._read(ProposalDetail, "env_adapter", key, path)

    @asynccontextmanager
    async def events(self, key: str, run_id: str, after: str) -> AsyncIterator[httpx.Response]:
        """The server-sent events of a run as they come."""
        client, path = self._clients["trainer"], f"/v1/runs/{segment(run_id)}/events"
        try:
            async with client.stream(
                "GET", path, params={"after": after}, headers=_bearer(key), timeout=_ANSWER_S
            ) as reply:
                if not reply.is_success:
                    await reply.aread()
                    raise _refusal(reply)
                yield reply
        except LOST as error:
            raise unreachable(client, "GET", path, error) from error

    async def _read(self, model: type[M], api: str, key: str, path: str, **params: Any) -> M:
        return model.model_validate(await self._get(api, key, path, **params))

    async def _get(self, api: str, key: str, path: str, **params: Any) -> Any:
        client = self._clients[api]
        query = {name: value for name, value in params.items() if value != ""}
        try:
            reply = await client.get(path, params=query or None, headers=_bearer(key))
        except LOST as error:
            raise unreachable(client, "GET", path, error) from error
        if not reply.is_success:
            raise _refusal(reply)
        return parse_json(reply)


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def _refusal(reply: httpx.Response) -> TriforgeError:
    error = error_of(reply)
    return KeyRefusedError(error.detail) if reply.status_code in (401, 403) else error
