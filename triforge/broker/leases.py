"""Short leases on jobs, renewed for as long as the work lasts: all that a process holds in one go."""

from __future__ import annotations

import asyncio
import contextlib

from triforge.broker.convoy import Convoy
from triforge.broker.scripts import RELEASE, RENEW
from triforge.errors import StorageError, UnavailableError


class Leases:
    """The leases that one process holds, by key, each with the token that proves it.

    Args:
        convoy: to the server.
        lease_ms: how long a lease lasts; it is renewed after a third of that.
    """

    def __init__(self, convoy: Convoy, lease_ms: int) -> None:
        self._convoy = convoy
        self.lease_ms = lease_ms
        self._held: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    def token(self, key: str) -> str:
        """The token of a lease that is held here, else empty."""
        return self._held.get(key, "")

    def keep(self, key: str, token: str) -> None:
        """Renew a lease that was just acquired until `let_go`."""
        self._held[key] = token
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._tick)

    async def let_go(self, key: str) -> str:
        """Renew a lease no more; returns its token. No renewal is under way then, which would undo its release."""
        token = self._held.pop(key, "")
        if self._renewing is not None and token:
            await asyncio.wait({self._renewing})
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return token

    async def release(self, key: str) -> None:
        """Give a lease back if it is still held; that Redis is away does not matter, for it runs out."""
        token = await self.let_go(key)
        if token:
            with contextlib.suppress(UnavailableError, StorageError):
                await self._convoy.execute("EVAL", RELEASE, 1, key, token)

    @property
    def _pause_s(self) -> float:
        return self.lease_ms / 3000

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._tick)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        try:
            renewals = [
                self._convoy.execute("EVAL", RENEW, 1, key, token, self.lease_ms)
                for key, token in self._held.items()
            ]
            # One that Redis refuses is tried again the next time; the work goes on meanwhile.
            await asyncio.gather(*renewals, return_exceptions=True)
        finally:
            self._renewing = None

    async def close(self) -> None:
        """Renew nothing more."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewing is not None:
            await asyncio.wait({self._renewing})
