"""Groups in flight: submit their jobs, receive judged groups, and send lost jobs again.

A group is in flight from `submit` until it has landed. A caller that needs groups calls `receive` until they have landed. Inside
`receiving`, groups land while the caller does other work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.trainer.credit.judged_groups import judged_by, played_by
from services.trainer.loop.gauges import LANDED, PROGRESS, REPLAYED, RESENT
from services.trainer.loop.lost import Submissions, Survey, judged_parts
from triforge.broker import JUDGE_QUEUE, JUDGED_STREAM, ROLLOUT_QUEUE, Broker, group_judgement_id
from triforge.errors import StorageError, TrainerError, UnavailableError
from triforge.event_loop import end_task, together
from triforge.rollout.episode import judge_task
from triforge.rollout.transcript import trajectory_id
from triforge.types import GroupTask, JudgedGroup, TrainedRole

log = logging.getLogger(__name__)

_BLOCK_S = 0.5  # how long one read of the stream waits
_REST = 3  # pause after a survey, in multiples of its duration
_REPLAYS = 2  # times that a group of foreign weights is played again before it is accepted

Versions = Mapping[TrainedRole, int]
Arrived = Callable[[JudgedGroup, int, int], Awaitable[None]]


@dataclass(slots=True)
class _Count:
    """How many groups of one submission have landed."""

    total: int
    done: int = 0


@dataclass(slots=True)
class _Flight:
    task: GroupTask
    exact: bool  # newer weights are foreign, too
    count: _Count | None  # None: no event when it lands
    sent: Submissions
    replays: int = 0


class InFlight:
    """All groups of a run that are in flight.

    Args:
        resend_s, lease_s: see `lost.Survey`.
        check: awaited regularly; raises to abandon the wait (stop requested).
        newest: the newest weights of the run by role, those about to be served included; groups of newer weights are foreign.
        arrived: awaited with each group that lands, the number of landed groups of its submission, and their total; must not raise.
        sweep_s: seconds between searches for lost jobs.

    Attributes:
        landed: groups that have come in and were not taken yet, by id.
        resent: lost jobs that were sent again.
        replayed: groups played again because other weights had played them.
        overlap_s: seconds in `receiving` during which something was in flight.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        resend_s: float,
        lease_s: float,
        check: Callable[[], Awaitable[None]],
        newest: Versions | None = None,
        arrived: Arrived | None = None,
        sweep_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker, self._check, self._arrived, self._clock = broker, check, arrived, clock
        self._resend_s, self._lease_s, self._sweep_s = resend_s, lease_s, sweep_s
        self._newest = {} if newest is None else newest
        self._flights: dict[str, _Flight] = {}
        self._cursor: str | None = None
        self._swept = 0.0
        self.landed: dict[str, JudgedGroup] = {}
        self.resent, self.replayed, self.overlap_s = 0, 0, 0.0

    async def play(
        self, tasks: Sequence[GroupTask], *, deadline_s: float, versions: Versions
    ) -> list[JudgedGroup]:
        """Submit groups and wait for all of them, played and judged by these weights and no others; in the same order.

        Raises:
            TrainerError: not all came within `deadline_s`, or not a single episode could be measured.
        """
        started, names = self._clock(), [task.group_id for task in tasks]
        await self.submit(tasks, oldest=versions, exact=True)
        while missing := [name for name in names if name not in self.landed]:
            await self.receive(missing, since=started, deadline_s=deadline_s)
        return await self.take(names)

    async def submit(
        self,
        tasks: Sequence[GroupTask],
        *,
        oldest: Versions,
        exact: bool = False,
        announce: bool = True,
    ) -> None:
        """Put groups in flight. A complete group lands at once; a group that a worker holds is not sent again.

        A group of other weights than those from `oldest` (by role) to the newest, or with `exact` than `oldest` alone, is
        cancelled and played again: a worker was faster than the engines after a restart.
        """
        if self._cursor is None:
            self._cursor = await self._broker.last_id(JUDGED_STREAM)
            self._swept = self._clock()
        count, now = _Count(len(tasks)) if announce else None, self._clock()
        dated = [task.model_copy(update={"oldest": dict(oldest)}) for task in tasks]
        flights = [_Flight(task, exact, count, Submissions(now)) for task in dated]
        self._flights |= {flight.task.group_id: flight for flight in flights}
        await together(self._send(flight) for flight in flights)

    async def receive(self, wanted: Sequence[str], *, since: float, deadline_s: float) -> None:
        """Land the groups that were announced, wait a moment for more, and send lost jobs again.

        Raises:
            TrainerError: the wait for `wanted` has lasted longer than `deadline_s` since `since` (by the clock).
        """
        await self._check()
        if self._clock() - since > deadline_s:
            names = ", ".join(wanted[:5]) + (f" and {len(wanted) - 5} more" if wanted[5:] else "")
            raise TrainerError(
                f"after {deadline_s:.0f} s {len(wanted)} groups are not played and judged: {names}; are rollout and "
                "judge workers running? run.step_deadline_s sets the limit"
            )
        await self._pump()

    @contextlib.asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Land groups in the background of the block.

        While Redis is away, landing waits; any other error of it ends the block.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                landing = tasks.create_task(self._land_on())
                try:
                    yield
                finally:
                    await end_task(landing)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _land_on(self) -> None:
        while self._flights:
            before = self._clock()
            try:
                await self._pump()
            except (UnavailableError, StorageError) as error:
                log.warning("landing waits: %s", error.detail)
                await asyncio.sleep(_BLOCK_S)
            self.overlap_s += self._clock() - before

    def is_measured(self, names: Iterable[str]) -> bool:
        """Return whether groups that have landed have an episode that was measured, or no episode at all."""
        trajectories = [t for name in names for t in self.landed[name].played.trajectories]
        return not trajectories or any(t.measured for t in trajectories)

    async def take(self, names: Sequence[str]) -> list[JudgedGroup]:
        """Hand over groups that have landed.

        A run whose episodes all fail would finish without having learnt or measured anything: it stops instead.

        Raises:
            TrainerError: not a single one of their episodes could be measured.
        """
        groups = [self.landed[name] for name in names]
        if not self.is_measured(names):
            for group in groups:  # they are played afresh when the run is resumed
                await self.forget(group.played.group)
            trajectories = [t for group in groups for t in group.played.trajectories]
            first = trajectories[0].outcome.error
            raise TrainerError(
                f"none of {len(trajectories)} episodes could be measured; the first: "
                f"{first.detail if first else 'no reason given'}"
            )
        for group in groups:
            del self.landed[group.played.group.group_id]
        return groups

    async def forget(self, task: GroupTask) -> None:
        """Cancel a group and delete its payloads."""
        self._flights.pop(task.group_id, None)
        self.landed.pop(task.group_id, None)
        parts = tuple(trajectory_id(task.group_id, index) for index in range(task.rollouts))
        await self._broker.forget_group(task.group_id, parts)

    async def judge_again(
        self, group: JudgedGroup, judged_ids: tuple[str, ...], *, oldest: Versions
    ) -> None:
        """Have some trajectories or the tests of a group judged again, by weights from `oldest` on; delete the old judgements."""
        task = group.played.group
        self.landed.pop(task.group_id, None)
        await self._broker.forget_votes(task.group_id, judged_ids)
        await self.submit([task], oldest=oldest, announce=False)

    async def discard(self, groups: Iterable[JudgedGroup]) -> None:
        """Delete the payloads of committed groups."""
        played = [group.played for group in groups]
        await together(
            self._broker.retire_group(p.group.group_id, tuple(t.id for t in p.trajectories))
            for p in played
        )

    async def _pump(self) -> None:
        if self._cursor is None:
            return
        heard = await self._broker.read_judged(self._cursor, block_s=_BLOCK_S)
        if heard:  # the sweep finds a group that cannot land now
            self._cursor = heard[-1][0]
            names = dict.fromkeys(group_id for _, group_id in heard)
            await together(self._land(self._flights[n]) for n in names if n in self._flights)
        if self._clock() - self._swept > self._sweep_s:
            begun = self._clock()
            await self._sweep(begun)
            # a sweep over very many groups takes long: it must not take all the time
            self._swept = self._clock() + _REST * (self._clock() - begun)

    async def _send(self, flight: _Flight) -> None:
        """Land a group, or send its job unless a worker has held it since before the orchestrator's restart."""
        if await self._land(flight):
            return
        task = flight.task
        if not await self._broker.is_held(task.group_id, *judged_parts(task)):
            await self._broker.send(task)
        flight.sent.at = self._clock()

    async def _land(self, flight: _Flight) -> bool:
        """Land a group if it is complete."""
        group_id = flight.task.group_id
        group = await self._broker.judged_group(group_id)
        if group is None or self._flights.get(group_id) is not flight:
            return False
        if flight.replays < _REPLAYS and self._is_foreign(group, flight):
            ids = tuple(t.id for t in group.played.trajectories)
            await self._broker.forget_group(group_id, ids)
            await self._broker.send(flight.task)
            flight.sent.at = self._clock()
            flight.replays += 1
            self.replayed += 1
            REPLAYED.inc()
            return True
        del self._flights[group_id]
        self.landed[group_id] = group
        LANDED.inc()
        PROGRESS.set_to_current_time()
        if self._arrived is not None and (count := flight.count):
            count.done += 1
            await self._arrived(group, count.done, count.total)
        return True

    def _is_foreign(self, group: JudgedGroup, flight: _Flight) -> bool:
        """Return whether other weights than those of the run since its submission have played or judged the group."""
        found, elsewhere = judged_by(group), flight.task.env_adapter.by_trainer
        players = () if elsewhere else {p.model for p in flight.task.agents.values()} | {"policy"}
        for role in players:
            found |= {(role, version) for version in played_by(group, role)}
        for role, version in found:
            oldest = flight.task.oldest.get(role, math.inf)  # no weights of that role may
            newest = oldest if flight.exact else self._newest.get(role, oldest)
            if not oldest <= version <= newest:
                return True
        return False

    async def _sweep(self, now: float) -> None:
        """Land groups whose announcement was missed; send lost jobs again."""
        for group_id in await self._broker.announced(list(self._flights)):
            if group_id in self._flights:
                await self._land(self._flights[group_id])
        waiting = await self._broker.depth(ROLLOUT_QUEUE) + await self._broker.depth(JUDGE_QUEUE)
        # no job younger than a lease can be lost
        flights = [f for f in self._flights.items() if now - f[1].sent.at >= self._lease_s]
        stands = await self._broker.status([(name, judged_parts(f.task)) for name, f in flights])
        found = list(zip(flights, stands, strict=True))
        begun = [f.sent.at for (name, f), seen in found if name in seen.begun]
        survey = Survey(
            now=now,
            waiting=waiting,
            youngest=max(begun, default=-math.inf),
            lease_s=self._lease_s,
            resend_s=self._resend_s,
        )
        for (group_id, flight), seen in found:
            if self._flights.get(group_id) is not flight:
                continue
            if survey.is_lost(group_id, flight.sent, seen):
                await self._broker.send(flight.task)
                flight.sent.again(now)
                self._count_resent(1)
            elif dead := survey.dead_judgements(group_id, flight.sent, seen):
                await self._judge_lost(flight.task, dead)
                flight.sent.judge_again(dead, now, self._lease_s)
        await asyncio.sleep(0)

    async def _judge_lost(self, task: GroupTask, dead: frozenset[str]) -> None:
        """Send lost jobs of the judge again."""
        if group_judgement_id(task.group_id) in dead:
            # a worker that takes the group's job sends the judge's job on the group
            await self._broker.send(task)
        for index in range(task.rollouts):
            if trajectory_id(task.group_id, index) in dead:
                await self._broker.send(judge_task(task, index))
        self._count_resent(len(dead))

    def _count_resent(self, jobs: int) -> None:
        self.resent += jobs
        RESENT.inc(jobs)
