"""Waiting for a state, never for a time alone."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx

_POLL_S = 0.1
_LOOK_S = 2.0  # between two looks at a process that is to come to rest
_REST_SHARE = 0.05  # of a core, which polling takes at most


async def until(holds: Callable[[], bool], *, within_s: float) -> bool:
    """Whether something holds before the time is over; looked at every tenth of a second."""
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def until_idle(pid: int | None, *, within_s: float) -> bool:
    """Whether a process has come to rest before the time is over: it has used the processor and does no more.

    A process without an API cannot be asked whether it has loaded what it works with.
    """
    end, used = time.monotonic() + within_s, -1.0
    while pid is not None and time.monotonic() < end:
        before, used = used, _processor_s(pid)
        if used - before < _REST_SHARE * _LOOK_S and before > 1.0:
            return True
        await asyncio.sleep(_LOOK_S)
    return False


def _processor_s(pid: int) -> float:
    """Processor time that a process has used, in seconds; none if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
