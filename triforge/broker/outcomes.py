"""Outcomes that adaptation has been told of and has not dealt with yet: kept until it has, and sent again when nobody is at it.

The orchestrator goes on without waiting for adaptation, so nobody watches these jobs from outside. The adapt workers do it
themselves: what was begun and is held by nobody, or was never begun although the queue is empty, goes into the queue again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from triforge.broker.names import ADAPT_QUEUE
from triforge.types import TaskOutcome

log = logging.getLogger(__name__)

_INDEX = "tf:outcomes"
_WEEK_S = 7 * 24 * 3600
_AT_ONCE = 500  # outcomes that are looked at, the oldest: workers take them in this order
_MOST = 8  # times that an outcome is sent again; each waits twice as long as the one before


@dataclass(slots=True)
class _Idle:
    """Since when nobody was seen at an outcome."""

    since: float
    begun: bool


class Outcomes:
    """Access to what adaptation still has to do.

    Args:
        redis: the client.
        call: awaits a command and raises our errors.
        clock: seconds, monotone.
    """

    def __init__(
        self,
        redis: Any,
        call: Callable[[Any], Awaitable[Any]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis, self._call, self._clock = redis, call, clock
        self._idle: dict[str, _Idle] = {}

    async def keep(self, outcome: TaskOutcome) -> None:
        """Note an outcome before it is sent."""
        pipe = self._redis.pipeline()
        pipe.set(_payload(outcome.group_id), outcome.model_dump_json(), ex=_WEEK_S)
        pipe.zadd(_INDEX, {outcome.group_id: time.time()}, nx=True)
        await self._call(pipe.execute())

    async def done(self, group_id: str) -> None:
        """Nothing is left to do about an outcome, or nothing can be done."""
        pipe = self._redis.pipeline()
        pipe.zrem(_INDEX, group_id)
        pipe.delete(_payload(group_id), _count(group_id), _pause(group_id))
        await self._call(pipe.execute())

    async def postpone(self, group_id: str, seconds: float) -> None:
        """Somebody has it, although no lease says so: it comes back by itself within that time."""
        await self._call(self._redis.set(_pause(group_id), "1", px=max(1, int(seconds * 1000))))

    async def lost(self, *, lease_s: float, resend_s: float) -> list[TaskOutcome]:
        """Outcomes to be sent again now; to be asked every few seconds. Of several askers one gets each.

        Args:
            lease_s: the first pause after one was sent again; it doubles.
            resend_s: one that nobody has begun is lost when the queue was empty for so long.
        """
        names = await self._call(self._redis.zrange(_INDEX, 0, _AT_ONCE - 1))
        self._idle = {name: idle for name, idle in self._idle.items() if name in set(names)}
        if not names:
            return []
        pipe = self._redis.pipeline(transaction=False)
        pipe.llen(ADAPT_QUEUE)
        for name in names:
            pipe.exists(f"tf:lease:{outcome_job(name)}", _pause(name))
            pipe.exists(f"tf:started:{outcome_job(name)}")
        waiting, *marks = await self._call(pipe.execute())
        lost = [
            name
            for name, busy, begun in zip(names, marks[::2], marks[1::2], strict=True)
            if self._is_lost(name, bool(busy), bool(begun), waiting == 0, resend_s)
        ]
        found = [await self._claim(name, lease_s) for name in lost]
        return [outcome for outcome in found if outcome is not None]

    def _is_lost(self, name: str, busy: bool, begun: bool, empty: bool, resend_s: float) -> bool:
        """Whether nobody was at it the last time and nobody is now."""
        if busy or not (begun or empty):
            self._idle.pop(name, None)
            return False
        now, idle = self._clock(), self._idle.get(name)
        if idle is None or idle.begun != begun:
            self._idle[name] = _Idle(now, begun)
            return False
        return begun or now - idle.since >= resend_s

    async def _claim(self, name: str, lease_s: float) -> TaskOutcome | None:
        """Take the right to send it again, for longer each time."""
        self._idle.pop(name, None)
        if not await self._call(
            self._redis.set(_pause(name), "1", nx=True, px=int(lease_s * 1000))
        ):
            return None
        pipe = self._redis.pipeline()
        pipe.get(_payload(name))
        pipe.incr(_count(name))
        pipe.expire(_count(name), _WEEK_S)
        text, count, _ = await self._call(pipe.execute())
        if text is None or count > _MOST:
            log.error("gave up the outcome of %s: %s", name, "it is gone" if text is None else f"sent {_MOST} times")  # fmt: skip
            await self.done(name)
            return None
        await self.postpone(name, lease_s * 2 ** (count - 1))
        return TaskOutcome.model_validate_json(text)


def outcome_job(group_id: str) -> str:
    """What the job of an outcome is called; its lease too."""
    return f"adapt:{group_id}"


def _payload(group_id: str) -> str:
    return f"tf:outcome:{group_id}"


def _count(group_id: str) -> str:
    return f"tf:outcome-sent:{group_id}"


def _pause(group_id: str) -> str:
    return f"tf:outcome-pause:{group_id}"
