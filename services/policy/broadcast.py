"""Seats in a broadcast: what the service arranges with the learner before engines can receive tensors from it."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import ValidationError

from services.policy.delivery import Live, Seat
from services.policy.sglang import SGLangEngine
from triforge.clients.transport import http_client, parse_json, post_json, request
from triforge.errors import PolicyError, TriforgeError
from triforge.types import BroadcastOffer, BroadcastRequest, Handover

_log = logging.getLogger(__name__)
_API = "/v1/broadcasts"
_TIMEOUT_S = 30.0


class Broadcasts:
    """Client of the learners' APIs.

    Args:
        admin_api_key: key that a learner's API asks for; empty if it asks for none.
        transport: replaces the network in tests.
    """

    def __init__(
        self, *, admin_api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._key, self._transport = admin_api_key, transport

    def _api(self, handover: Handover) -> httpx.AsyncClient:
        return http_client(
            handover.url, timeout_s=_TIMEOUT_S, transport=self._transport, api_key=self._key
        )

    async def seats(
        self, engines: Sequence[SGLangEngine], wanted: Live, handover: Handover
    ) -> dict[str, Seat]:
        """Ask the learner for a broadcast to each of these engines; their seats by address.

        An engine for which that cannot be arranged has none; the reason is logged, and it reads the folder.
        """
        seats = await asyncio.gather(*(self._seat(e, wanted, handover) for e in engines))
        return {e.url: seat for e, seat in zip(engines, seats, strict=True) if seat is not None}

    async def _seat(self, engine: SGLangEngine, wanted: Live, handover: Handover) -> Seat | None:
        try:
            body = BroadcastRequest(
                uri=wanted.uri, digest=wanted.digest, receivers=await _processes(engine)
            )
            async with self._api(handover) as api:
                offer = BroadcastOffer.model_validate(await post_json(api, _API, body))
        except (TriforgeError, ValidationError) as error:
            _log.warning("engine %s takes no part in the broadcast: %s", engine.url, error)
            return None
        return Seat(offer, 1, functools.partial(self.end, handover, offer))

    async def end(self, handover: Handover, offer: BroadcastOffer) -> str:
        """Tell the learner that nobody listens any more; returns what became of the broadcast."""
        try:
            async with self._api(handover) as api:
                reply = await request(api, "DELETE", f"{_API}/{offer.group}")
                found: Any = parse_json(reply)
                return str(found.get("state", "")) if isinstance(found, dict) else ""
        except TriforgeError as error:
            return error.detail


async def _processes(engine: SGLangEngine) -> int:
    """How many processes of an engine take part.

    Raises:
        PolicyError: it cannot receive.
        UnavailableError: it is gone.
    """
    info = await engine.server_info()
    if int(info.get("dp_size") or 1) > 1:
        raise PolicyError(f"--dp-size is {info['dp_size']}; SGLang receives broadcasts with 1 only")
    return int(info.get("tp_size") or 1)
