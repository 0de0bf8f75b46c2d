"""A group that agents play: its places are opened, and it is complete when all of them are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from services.env_adapter.session_store import OVER, SessionStore
from services.env_adapter.sessions import trajectory_of
from triforge.broker.sessions import SessionLog
from triforge.types import GroupTask, Task, Trajectory, TrajectoryGroup

_LOOK_S: Final = 0.5
Ended = Callable[[Trajectory], Awaitable[Trajectory]]


class SessionGroups:
    """Waits for sessions, in place of playing episodes."""

    def __init__(self, store: SessionStore, log: SessionLog, *, look_s: float = _LOOK_S) -> None:
        self._store, self._log, self._look_s = store, log, look_s

    async def play(
        self,
        task: Task,
        group: GroupTask,
        *,
        known: Mapping[int, Trajectory],
        ended: Ended,
        over: Callable[[], Awaitable[bool]],
    ) -> TrajectoryGroup | None:
        """Wait for the K sessions of a group; None if nobody waits for it any more. See `triforge.rollout.episode.run_group`."""
        loop = asyncio.get_running_loop()
        started, played = loop.time(), dict(known)
        attempt = await asyncio.to_thread(self._store.open_group, group)
        while len(played) < group.rollouts:
            if await over():
                await self.close(group)
                return None
            for settled in await asyncio.to_thread(
                self._store.settled, group.group_id, attempt, played
            ):
                played[settled.index] = await ended(trajectory_of(settled, task, group))
            if len(played) < group.rollouts:
                await asyncio.sleep(self._look_s)
        return TrajectoryGroup(
            group=group,
            task=task,
            trajectories=tuple(played[index] for index in range(group.rollouts)),
            seconds=loop.time() - started,
        )

    async def close(self, group: GroupTask) -> None:
        """Take no more sessions; if the group is played again, it begins anew."""
        for session_id in await asyncio.to_thread(self._store.close_group, group.group_id):
            await self._log.close(session_id, OVER)
