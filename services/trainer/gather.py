"""Getting groups played and judged: sends errands, waits, and sends again what nobody holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from triforge.errors import TrainerError
from triforge.messages import GroupTask, JudgedGroup, TrainedRole
from triforge.queues import JUDGE_QUEUE, JUDGED_STREAM, ROLLOUT_QUEUE, Wire
from triforge.rollout.episode import trajectory_id

_BLOCK_S = 0.5  # how long one read of the stream waits
_DOUBLINGS = 4  # an errand sent again and again waits up to 2**4 times as long before the next time
_REPLAYS = 2  # times that a group of foreign weights is played again before it is taken as it is

Versions = Mapping[TrainedRole, int]
Arrived = Callable[
    [JudgedGroup, int, int], Awaitable[None]
]  # a group, how many are done, of how many


@dataclass(slots=True)
class _Flight:
    task: GroupTask
    sent_at: float
    replays: int = 0
    resends: int = 0  # since somebody was last seen at it


class _Done:
    """The groups that have landed."""

    def __init__(self, total: int, arrived: Arrived | None) -> None:
        self.groups: dict[str, JudgedGroup] = {}
        self._total, self._arrived = total, arrived

    async def take(self, group: JudgedGroup) -> None:
        self.groups[group.played.group.group_id] = group
        if self._arrived is not None:
            await self._arrived(group, len(self.groups), self._total)


class Gatherer:
    """Plays a list of groups to the end.

    Args:
        wire: queues and payloads.
        resend_s: an errand that nobody started for so long, with an empty queue, is sent again.
        lease_s: an errand that was started is sent again when its lease has been gone for so long.
        check: awaited regularly; raises to abandon the gathering (stop requested).
        sweep_s: how often errands without a holder are looked for.
        clock: seconds, monotone.

    Attributes:
        resent: errands sent again because nobody held them.
        replayed: groups played again because other weights had played them.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        resend_s: float,
        lease_s: float,
        check: Callable[[], Awaitable[None]],
        sweep_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wire = wire
        self._resend_s = resend_s
        self._lease_s = lease_s
        self._check = check
        self._sweep_s = sweep_s
        self._clock = clock
        self.resent = 0
        self.replayed = 0

    async def gather(
        self,
        tasks: list[GroupTask],
        *,
        deadline_s: float,
        versions: Versions,
        arrived: Arrived | None = None,
    ) -> list[JudgedGroup]:
        """Send all groups and wait for all of them; groups that are complete already are not played again.

        A group that other weights have played or judged (a worker was up before the run's own weights were back) is
        forgotten and played again.

        Args:
            tasks: what to play.
            deadline_s: for all of them.
            versions: the weights that may play (`acts`) and judge (`judges`).
            arrived: awaited with every group as it lands; must not raise.

        Returns:
            The groups in the order of `tasks`.

        Raises:
            TrainerError: not all groups came within `deadline_s`, or not a single episode could be measured; the sentence
                names what is missing, or the first episode's error.
        """
        started = swept = self._clock()
        cursor = await self._wire.last_id(JUDGED_STREAM)
        done = _Done(len(tasks), arrived)
        flights = {task.group_id: _Flight(task, started) for task in tasks}
        for flight in list(flights.values()):
            if not await self._land(flight, flights, done, versions):
                await self._send(flight)
        while flights:
            await self._check()
            if self._clock() - started > deadline_s:
                raise TrainerError(_late(flights, deadline_s))
            for entry, group_id in await self._wire.read_judged(cursor, block_s=_BLOCK_S):
                cursor = entry
                if group_id in flights:
                    await self._land(flights[group_id], flights, done, versions)
            if self._clock() - swept > self._sweep_s:
                await self._sweep(flights, done, versions)
                swept = self._clock()
        groups = [done.groups[task.group_id] for task in tasks]
        await self._demand_measured(groups)
        return groups

    async def _demand_measured(self, groups: list[JudgedGroup]) -> None:
        """A run whose episodes all fail would finish without having learnt or measured anything: it stops instead."""
        trajectories = [t for group in groups for t in group.played.trajectories]
        if not trajectories or any(t.measured for t in trajectories):
            return
        for group in groups:  # they are played afresh when the run is resumed
            ids = tuple(t.id for t in group.played.trajectories)
            await self._wire.forget_group(group.played.group.group_id, ids)
        first = trajectories[0].outcome.error
        raise TrainerError(
            f"none of {len(trajectories)} episodes could be measured; the first: "
            f"{first.detail if first else 'no reason given'}"
        )

    async def _send(self, flight: _Flight) -> None:
        """Send an errand, unless somebody is still at it since before the conductor's restart."""
        if not await self._is_held(flight.task):
            await self._wire.send_rollout(flight.task)
        flight.sent_at = self._clock()

    async def _land(
        self,
        flight: _Flight,
        flights: dict[str, _Flight],
        done: _Done,
        versions: Versions,
    ) -> bool:
        """Take a group in if it is complete."""
        group_id = flight.task.group_id
        group = await self._wire.judged_group(group_id)
        if group is None:
            return False
        if flight.replays < _REPLAYS and _is_foreign(group, versions):
            ids = tuple(t.id for t in group.played.trajectories)
            await self._wire.forget_group(group_id, ids)
            await self._wire.send_rollout(flight.task)
            flight.sent_at = self._clock()
            flight.replays += 1
            self.replayed += 1
            return True
        del flights[group_id]
        await done.take(group)
        return True

    async def _sweep(self, flights: dict[str, _Flight], done: _Done, versions: Versions) -> None:
        waiting = await self._wire.depth(ROLLOUT_QUEUE) + await self._wire.depth(JUDGE_QUEUE)
        for group_id, flight in list(flights.items()):
            announced = await self._wire.is_announced(group_id)
            if announced and await self._land(flight, flights, done, versions):
                continue
            if await self._is_lost(flight, waiting):
                await self._wire.send_rollout(flight.task)
                flight.sent_at = self._clock()
                flight.resends += 1
                self.resent += 1
        await asyncio.sleep(0)

    async def _is_lost(self, flight: _Flight, waiting: int) -> bool:
        """Whether nobody works on this errand any more.

        A lease that is gone although the errand was started means its worker died, unless the group is played and its
        votes are still being cast; with nothing waiting in the queues for `resend_s` that is over, too. Both waits double
        with every time it was sent again: a worker that met a service that is away keeps its errand for a while, and no
        queue shows it meanwhile.
        """
        age = (self._clock() - flight.sent_at) / 2 ** min(flight.resends, _DOUBLINGS)
        if age < self._lease_s:
            return False
        if await self._is_held(flight.task):
            flight.resends = 0
            return False
        group_id = flight.task.group_id
        died = await self._wire.was_started(group_id) and not await self._wire.is_played(group_id)
        return died or (waiting == 0 and age > self._resend_s)

    async def _is_held(self, task: GroupTask) -> bool:
        """Whether a rollout worker holds the group or a judge one of its trajectories."""
        parts = (trajectory_id(task.group_id, index) for index in range(task.rollouts))
        return await self._wire.is_held(task.group_id, *parts)


def _is_foreign(group: JudgedGroup, versions: Versions) -> bool:
    sampled = {
        span.version
        for trajectory in group.played.trajectories
        for segment in trajectory.segments
        for span in segment.versions
    }
    voted = {
        span.version
        for votes in group.votes
        for step in (votes.steps if votes else ())
        for vote in step.votes
        for span in vote.versions
    }
    return any(v != versions.get("acts") for v in sampled) or any(
        v != versions.get("judges") for v in voted
    )


def _late(flights: Mapping[str, _Flight], deadline_s: float) -> str:
    names = ", ".join(list(flights)[:5])
    more = f" and {len(flights) - 5} more" if len(flights) > 5 else ""
    return (
        f"after {deadline_s:.0f} s {len(flights)} groups are not played and judged: {names}{more}; are rollout and "
        "judge workers running? run.step_deadline_s sets the limit"
    )


__all__ = ["Arrived", "Gatherer"]
