"""Groups that agents play: their places are opened, and a group is complete when all places are settled."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from services.env_adapter.sessions.expiry import expire
from services.env_adapter.sessions.store import OVER, SessionStore, Settled
from services.env_adapter.sessions.trajectories import trajectory_of
from triforge.broker.sessions import SessionLog
from triforge.rollout.protocols import KeepImage
from triforge.types import GroupTask, ImageRef, Task, Trajectory, TrajectoryGroup

_POLL_S: Final = 0.5
Ended = Callable[[Trajectory], Awaitable[Trajectory]]


class SessionGroups:
    """Waits for sessions instead of playing episodes."""

    def __init__(
        self, store: SessionStore, log: SessionLog, *, keep: KeepImage | None = None, poll_s: float = _POLL_S
    ) -> None:  # fmt: skip
        self._store, self._log, self._keep, self._poll_s = store, log, keep, poll_s
        self._seen: dict[str, list[tuple[str, ImageRef]]] = defaultdict(list)  # by group

    async def play(
        self,
        task: Task,
        group: GroupTask,
        *,
        success_at: JsonValue,
        known: Mapping[int, Trajectory],
        ended: Ended,
        over: Callable[[], Awaitable[bool]],
    ) -> TrajectoryGroup | None:
        """Wait for the K sessions of a group; return None once `over`. See `triforge.rollout.episode.run_group`."""
        loop = asyncio.get_running_loop()
        started, played = loop.time(), dict(known)
        attempt = await asyncio.to_thread(self._store.open_group, group)
        while len(played) < group.rollouts:
            if await over():
                await self.close(group)
                return None
            for late in await asyncio.to_thread(self._store.late, group.group_id, attempt):
                await expire(self._store, self._log, late)
            for settled in await asyncio.to_thread(
                self._store.settled, group.group_id, attempt, played
            ):
                kept = await self._with_images(settled)
                played[settled.index] = await ended(trajectory_of(kept, task, group, success_at))
            if len(played) < group.rollouts:
                await asyncio.sleep(self._poll_s)
        return TrajectoryGroup(
            group=group,
            task=task,
            trajectories=tuple(played[index] for index in range(group.rollouts)),
            seconds=loop.time() - started,
        )

    async def _with_images(self, settled: Settled) -> Settled:
        """Store the images of a session for good; a session with a lost image is not measured."""
        seen = {placed.image for turn in settled.turns for placed in turn.images}
        for image in seen:
            data = await self._log.image(settled.state.id, image)
            if data is None or self._keep is None:
                state = settled.state.model_copy(
                    update={"reward": None, "reason": f"image {image.id} is lost"}
                )
                return replace(settled, state=state, turns=())
            await self._keep(data)
        self._seen[settled.state.group_id or ""] += [(settled.state.id, image) for image in seen]
        return settled

    async def close(self, group: GroupTask) -> None:
        """Accept no more sessions; a group that is played again begins anew."""
        for session_id in await asyncio.to_thread(self._store.close_group, group.group_id):
            await self._log.close(session_id, OVER)
        await self._log.forget_images(self._seen.pop(group.group_id, []))
