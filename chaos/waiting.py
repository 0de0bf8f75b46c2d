"""Waiting for a state, never for a time alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx

_POLL_S = 0.1


async def until(holds: Callable[[], bool], *, within_s: float) -> bool:
    """Whether something holds before the time is over; looked at every tenth of a second."""
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def until_serves(url: str, *, within_s: float) -> float:
    """Seconds until a service says it is ready; infinite if it does not in time."""
    begun = time.monotonic()
    async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
        while time.monotonic() - begun < within_s:
            try:
                if (await client.get(url)).status_code == 200:
                    return time.monotonic() - begun
            except httpx.HTTPError:
                pass
            await asyncio.sleep(_POLL_S)
    return float("inf")
