"""Waiting for a service that is away, instead of failing at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from triforge.errors import UnavailableError

_T = TypeVar("_T")

_SHORTEST_S, _LONGEST_S = 0.05, 5.0  # bounds of one wait, whatever Retry-After says


async def patiently(call: Callable[[], Awaitable[_T]], *, patience_s: float) -> _T:
    """Repeat `call` while nothing answers, for at most `patience_s` seconds; between two tries wait as it was told.

    Only for calls that may be repeated: sampling a prompt, writes that are first writer wins.

    Raises:
        UnavailableError: still nothing answers.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + patience_s
    while True:
        try:
            return await call()
        except UnavailableError as error:
            wanted = _SHORTEST_S if error.retry_after_s is None else error.retry_after_s
            wait = min(max(wanted, _SHORTEST_S), _LONGEST_S)
            if loop.time() + wait > give_up:
                raise
        await asyncio.sleep(wait)
