"""Broadcasts of weights from a learner's ranks to engines: client of the ranks' APIs, where broadcasts are arranged."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import ValidationError

from services.policy.engines.protocol import Engine
from services.policy.weights.adapters import Version
from triforge.clients.transport import http_client, parse_json, request
from triforge.errors import TriforgeError
from triforge.types import BroadcastOffer

_log = logging.getLogger(__name__)
_API = "/v1/broadcasts"
_API_TIMEOUT_S = 30.0


@dataclass(slots=True)
class BroadcastRank:
    """An engine's place in a broadcast: the groups of all parts, and its first rank in each of them.

    `end` ends the broadcast for all engines. An engine that leaves before it is `done` ends it: the others would wait.
    """

    offers: tuple[BroadcastOffer, ...]
    rank: int
    end: Callable[[], Awaitable[object]]
    done: bool = False

    async def leave(self) -> None:
        """Take no part any more."""
        if not self.done:
            self.done = True
            await self.end()


class Broadcasts:
    """Arranges broadcasts with learners' ranks, each to at most `together` engines."""

    def __init__(
        self,
        *,
        admin_api_key: str = "",
        together: int = 8,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._key, self._together, self._transport = admin_api_key, together, transport

    async def ranks(
        self, engines: Sequence[Engine], wanted: Version, handover: Sequence[str]
    ) -> dict[str, BroadcastRank]:
        """Ask the learner for broadcasts to these engines; return the ranks, by address, of those that can take part."""
        counts = await asyncio.gather(*map(_receivers, engines))
        able = [(e.url, count) for e, count in zip(engines, counts, strict=True) if count]
        groups = [able[i : i + self._together] for i in range(0, len(able), self._together)]
        arranged = await asyncio.gather(
            *(self._arrange(n, group, wanted, handover) for n, group in enumerate(groups))
        )
        return {url: rank for ranks in arranged for url, rank in ranks.items()}

    async def _arrange(
        self,
        number: int,
        engines: Sequence[tuple[str, int]],
        wanted: Version,
        handover: Sequence[str],
    ) -> dict[str, BroadcastRank]:
        """Arrange one broadcast. Each begins with another rank's part, so that all ranks send at the same time."""
        ranks = {url: 1 + sum(n for _, n in engines[:i]) for i, (url, _) in enumerate(engines)}
        body = {
            "uri": wanted.uri, "digest": wanted.digest, "parts": len(handover),
            "receivers": sum(n for _, n in engines),
        }  # fmt: skip
        turn = number % len(handover)
        calls = [
            self._ask(api, "POST", _API, body | {"part": part}) for part, api in enumerate(handover)
        ]
        try:
            answers = await asyncio.gather(*calls)
            offers = [BroadcastOffer.model_validate(answer) for answer in answers]
        except (TriforgeError, ValidationError) as error:
            _log.warning("engines %s take no part in a broadcast: %s", ", ".join(ranks), error)
            return {}
        places = [(api, f"{_API}/{o.group}") for api, o in zip(handover, offers, strict=True)]
        end = functools.partial(self._end, places)
        parts = tuple(offer for offer in offers[turn:] + offers[:turn] if offer.buckets)
        return {url: BroadcastRank(parts, rank, end) for url, rank in ranks.items()}

    async def _ask(self, api: str, method: str, path: str, body: Any = None) -> Any:
        async with http_client(
            api, timeout_s=_API_TIMEOUT_S, transport=self._transport, api_key=self._key
        ) as client:
            return parse_json(await request(client, method, path, body=body))

    async def _end(self, places: Sequence[tuple[str, str]]) -> None:
        """Tell the learner's ranks that no engine listens any more."""

        async def one(api: str, path: str) -> None:
            with contextlib.suppress(TriforgeError):  # it has ended, or the rank is gone
                await self._ask(api, "DELETE", path)

        await asyncio.gather(*(one(*place) for place in places))


async def _receivers(engine: Engine) -> int:
    try:
        return await engine.receivers()
    except TriforgeError as error:
        _log.warning("engine %s takes no part in a broadcast: %s", engine.url, error)
        return 0
