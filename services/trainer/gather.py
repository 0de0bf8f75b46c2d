"""Getting groups played and judged: sends errands, waits, and sends again what nobody holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from triforge.errors import TrainerError
from triforge.messages import GroupTask, JudgedGroup
from triforge.queues import JUDGE_QUEUE, JUDGED_STREAM, ROLLOUT_QUEUE, Wire

_SWEEP_S = 2.0  # how often errands without a holder are looked for
_BLOCK_S = 0.5  # how long one read of the stream waits


@dataclass(slots=True)
class _Flight:
    task: GroupTask
    sent_at: float
    resent: int = 0


class Gatherer:
    """Plays a list of groups to the end.

    Args:
        wire: queues and payloads.
        resend_s: an errand that nobody started for so long, with an empty queue, is sent again.
        lease_s: an errand that was started is sent again when its lease has been gone for so long.
        check: awaited regularly; raises to abandon the gathering (stop requested).
        clock: seconds, monotone.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        resend_s: float,
        lease_s: float,
        check: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wire = wire
        self._resend_s = resend_s
        self._lease_s = lease_s
        self._check = check
        self._clock = clock
        self.resent = 0

    async def gather(
        self,
        tasks: list[GroupTask],
        *,
        deadline_s: float,
        arrived: Callable[[JudgedGroup], None] = lambda _: None,
    ) -> list[JudgedGroup]:
        """Send all groups and wait for all of them; groups that are complete already are not played again.

        Returns the groups in the order of `tasks`; `arrived` is called as each comes in.

        Raises:
            TrainerError: not all groups came within `deadline_s`; the sentence names what is missing.
        """
        started = self._clock()
        cursor = await self._wire.last_id(JUDGED_STREAM)
        done: dict[str, JudgedGroup] = {}
        flights: dict[str, _Flight] = {}
        for task in tasks:
            if not await self._collect(task.group_id, done, arrived):
                await self._wire.send_rollout(task)
                flights[task.group_id] = _Flight(task, self._clock())
        swept = self._clock()
        while flights:
            await self._check()
            if self._clock() - started > deadline_s:
                raise TrainerError(_late(flights, deadline_s))
            for entry, group_id in await self._wire.read_judged(cursor, block_s=_BLOCK_S):
                cursor = entry
                if group_id in flights and await self._collect(group_id, done, arrived):
                    del flights[group_id]
            if self._clock() - swept > _SWEEP_S:
                await self._sweep(flights, done, arrived)
                swept = self._clock()
        return [done[task.group_id] for task in tasks]

    async def _collect(
        self, group_id: str, done: dict[str, JudgedGroup], arrived: Callable[[JudgedGroup], None]
    ) -> bool:
        group = await self._wire.judged_group(group_id)
        if group is None:
            return False
        done[group_id] = group
        arrived(group)
        return True

    async def _sweep(
        self,
        flights: dict[str, _Flight],
        done: dict[str, JudgedGroup],
        arrived: Callable[[JudgedGroup], None],
    ) -> None:
        waiting = await self._wire.depth(ROLLOUT_QUEUE) + await self._wire.depth(JUDGE_QUEUE)
        for group_id, flight in list(flights.items()):
            if await self._wire.is_announced(group_id) and await self._collect(
                group_id, done, arrived
            ):
                del flights[group_id]
            elif await self._lost(flight, waiting):
                await self._wire.send_rollout(flight.task)
                flight.sent_at = self._clock()
                flight.resent += 1
                self.resent += 1
        await asyncio.sleep(0)

    async def _lost(self, flight: _Flight, waiting: int) -> bool:
        """Whether nobody works on this errand any more.

        A lease that is gone although the errand was started means its worker died, unless the group is played and its
        votes are still being cast; with nothing waiting in the queues for `resend_s` that is over, too.
        """
        age = self._clock() - flight.sent_at
        group_id = flight.task.group_id
        if age < self._lease_s or await self._wire.is_held(group_id):
            return False
        died = await self._wire.was_started(group_id) and not await self._wire.is_played(group_id)
        return died or (waiting == 0 and age > self._resend_s)


def _late(flights: dict[str, _Flight], deadline_s: float) -> str:
    names = ", ".join(list(flights)[:5])
    more = f" and {len(flights) - 5} more" if len(flights) > 5 else ""
    return (
        f"after {deadline_s:.0f} s {len(flights)} groups are not played and judged: {names}{more}; are rollout and "
        "judge workers running? run.step_deadline_s sets the limit"
    )


__all__ = ["Gatherer"]
