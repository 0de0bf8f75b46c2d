"""Who waits for a free place at an engine: first come first served, and never more than may."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from triforge.errors import BusyError

_T = TypeVar("_T")
_SHORTEST_S, _LONGEST_S = 1.0, 30.0  # bounds of what the turned away are told to wait


class WaitingService:
    """A bounded queue. What is waited for is asked of the caller, so it knows nothing of engines.

    Args:
        limit: most samples that wait; a request is always let in when nobody waits.
        longest_s: longest wait of one request.
        option: the variable that sets `limit`, for the sentence to who is turned away.
    """

    def __init__(
        self, *, limit: int, longest_s: float, option: str = "TRIFORGE_MAX_WAITING"
    ) -> None:
        self._limit = limit
        self._longest_s = longest_s
        self._option = option
        self._line: deque[asyncio.Future[None]] = deque()
        self.waiting = 0  # samples
        self.turned_away = 0

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return bool(self._line)

    def wake(self) -> None:
        """Something has changed: whoever is first looks again."""
        if self._line and not self._line[0].done():
            self._line[0].set_result(None)

    async def wait(self, take: Callable[[], _T | None], weight: int, busy_s: float) -> _T:
        """Stand in line until `take` gives something.

        Args:
            take: called when it is this request's turn; None means not yet.
            weight: how many samples the request stands for.
            busy_s: seconds after which there may be a place, for who is turned away.

        Raises:
            BusyError: too many wait already, or the turn did not come in time.
        """
        if self._line and self.waiting + weight > self._limit:
            self.turned_away += 1
            raise BusyError(
                f"{self.waiting} samples wait for an engine, which is as many as may ({self._option}={self._limit}); "
                "come back later, or add engines",
                retry_after_s=min(max(busy_s, _SHORTEST_S), _LONGEST_S),
            )
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        self.waiting += weight
        try:
            async with asyncio.timeout(self._longest_s):
                return await self._until(take, turn)
        except TimeoutError:
            self.turned_away += 1
            raise BusyError(
                f"no engine had a free place within {self._longest_s:g} s (TRIFORGE_QUEUE_S)",
                retry_after_s=min(max(busy_s, _SHORTEST_S), _LONGEST_S),
            ) from None
        finally:
            self.waiting -= weight
            self.wake()

    async def _until(self, take: Callable[[], _T | None], turn: asyncio.Future[None]) -> _T:
        try:
            while True:
                if self._line[0] is turn and (found := take()) is not None:
                    return found
                await turn
                place = self._line.index(turn)  # it is the first that is woken
                turn = self._line[place] = asyncio.get_running_loop().create_future()
        finally:
            self._line.remove(turn)
