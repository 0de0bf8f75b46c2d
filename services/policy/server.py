"""The web server of a service that ends in order."""

from __future__ import annotations

import asyncio
import logging
from types import FrameType

import uvicorn

from services.policy.gateway import Gateway

_log = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """At the first signal the service takes nothing new and says so; it ends when what runs has ended, or its time is up.

    Meanwhile the listener stays open: who asks is told 503 with Retry-After, and `/readyz` says 503, so that whoever
    spreads requests over services looks elsewhere. A second signal ends it at once.

    Args:
        config: of the server.
        gateway: what runs and drains.
        drain_s: longest time for what runs.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway, *, drain_s: float) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._drain_s = drain_s
        self._told = False
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come."""
        if self._told:
            super().handle_exit(sig, frame)
        self._told = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._told and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        _log.info("told to end; waiting up to %g s for what runs", self._drain_s)
        await self._gateway.drain(self._drain_s)
        self.should_exit = True
