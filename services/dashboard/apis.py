"""What the pages are made of, read from the APIs with the key of whoever looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from pydantic import TypeAdapter

from triforge.clients.transport import (
    LOST,
    bearer,
    error_of,
    http_client,
    parse_json,
    segment,
    unreachable,
)
from triforge.config import Settings
from triforge.errors import TriforgeError
from triforge.types import WeightsState

if TYPE_CHECKING:
    from triforge.doctor.local import Finding

M = TypeVar("M")

_ANSWER_S = 30.0
_WORK_S = 90.0  # of a model that speaks or an environment that is played
_READY_S = 3.0  # a service that needs longer to say that it is ready is not


class KeyRefusedError(TriforgeError):
    """An API asks for a key, or for another one."""

    kind = "key_refused"
    status = 401


class Apis:
    """The APIs of a deployment, asked on behalf of a visitor.

    Args:
        addresses: URL of each service by the name shown; `trainer` and `env_adapter` are among them.
        transport: replaces the network in tests.
    """

    def __init__(
        self, addresses: Mapping[str, str], *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._clients = {
            name: http_client(url, timeout_s=_ANSWER_S, transport=transport)
            for name, url in addresses.items()
        }
        self.addresses, self._transport = dict(addresses), transport

    @classmethod
    def of(cls, settings: Settings, *, transport: httpx.AsyncBaseTransport | None = None) -> Apis:
        """Those of a deployment that its settings name."""
        models = (name for name in settings.services if name.endswith("_model"))
        names = [n for n in ("trainer", "env_adapter", "reward", *models) if settings.has(n)]
        urls = {name: settings.url(name).partition("#")[0] for name in names}
        return cls(urls, transport=transport)

    @property
    def models(self) -> list[str]:
        """The policy services among the addresses."""
        return [name for name in self.addresses if name.endswith("_model")]

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients.values()))

    async def readiness(self) -> dict[str, str]:
        """What each service says of itself: `ready`, or why it is not."""
        return await _each(self._clients, self._ready)

    async def findings(self, key: str) -> list[Finding]:
        """What `triforge doctor` says of the services."""
        from triforge.doctor.services import services  # noqa: PLC0415  it reads tokenizers

        urls = {f"{name}_url": url for name, url in self.addresses.items()}
        further = [name for name in urls if name not in Settings.model_fields]
        listed = (f"{name.removesuffix('_model_url')}={urls.pop(name)}" for name in further)
        settings = Settings.model_validate({"models": ",".join(listed), **urls, "key": key})
        return await services(
            settings, names=[*self.addresses], transport=self._transport, folders=False
        )

    async def served(self, key: str) -> dict[str, WeightsState | str]:
        """What the service of each model serves, or why it does not say."""
        return await _each(self.models, lambda name: self._serves(name, key))

    async def _serves(self, name: str, key: str) -> WeightsState | str:
        try:
            return await self.read(WeightsState, name, "/v1/weights", key)
        except TriforgeError as error:
            return error.detail

    async def _ready(self, name: str) -> str:
        try:
            reply = await self._clients[name].get("/readyz", timeout=_READY_S)
        except LOST as error:
            return f"no answer ({type(error).__name__})"
        return "ready" if reply.is_success else error_of(reply).detail

    @asynccontextmanager
    async def events(self, key: str, run_id: str, after: str) -> AsyncIterator[httpx.Response]:
        """The server-sent events of a run as they come."""
        client, path = self._clients["trainer"], f"/v1/runs/{segment(run_id)}/events"
        try:
            async with client.stream(
                "GET", path, params={"after": after}, headers=bearer(key), timeout=_ANSWER_S
            ) as reply:
                if not reply.is_success:
                    await reply.aread()
                    raise _refusal(reply)
                yield reply
        except LOST as error:
            raise unreachable(client, "GET", path, error) from error

    async def read(self, model: type[M], api: str, path: str, key: str, **params: Any) -> M:
        """What an API answers at a path, as a model or a list of them; empty parameters are left out."""
        reply = await self.fetch(api, path, key, **params)
        wanted: Any = model
        found: M = _adapter(wanted).validate_python(parse_json(reply))
        return found

    async def fetch(self, api: str, path: str, key: str, **params: Any) -> httpx.Response:
        """What an API answers at a path, as it is; a refusal is raised."""
        query = {name: value for name, value in params.items() if value != ""}
        return await self._ask("GET", api, path, key, params=query or None)

    async def post(self, api: str, path: str, key: str, body: Any) -> Any:
        """What an API answers to a document; a refusal is raised."""
        return parse_json(await self._ask("POST", api, path, key, json=body, timeout=_WORK_S))

    async def _ask(self, method: str, api: str, path: str, key: str, **more: Any) -> httpx.Response:
        client = self._clients[api]
        try:
            reply = await client.request(method, path, headers=bearer(key), **more)
        except LOST as error:
            raise unreachable(client, method, path, error) from error
        if not reply.is_success:
            raise _refusal(reply)
        return reply


async def _each(names: Iterable[str], ask: Callable[[str], Awaitable[M]]) -> dict[str, M]:
    known = [*names]
    return dict(zip(known, await asyncio.gather(*map(ask, known)), strict=True))


@lru_cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _refusal(reply: httpx.Response) -> TriforgeError:
    error = error_of(reply)
    return KeyRefusedError(error.detail) if reply.status_code in (401, 403) else error
