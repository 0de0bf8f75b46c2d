"""The job of the queue `rollout`: play a group.

A job may be delivered twice, and its worker may die at any point. Everything is stored under ids, the first writer wins,
and a second delivery continues where the first one stopped. Stored rollouts are not played again (the judge may have voted
on them), judge jobs without votes are sent again, and a complete group is announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from prometheus_client import Counter, Histogram
from pydantic import JsonValue

from services.env_adapter.sessions.groups import SessionGroups
from triforge.broker import Broker, group_judgement_id, unjudged
from triforge.environments.criteria import criteria_of
from triforge.errors import TriforgeError, UnavailableError
from triforge.retry import retry, waiting
from triforge.rollout.episode import Ended, judge_task, run_group
from triforge.rollout.isolation import fresh_environment
from triforge.rollout.live import environment_of
from triforge.rollout.protocols import EnvironmentFamily, Generate, KeepImage, ProgramFamily
from triforge.rollout.strategies import Artifacts
from triforge.rollout.transcript import trajectory_id
from triforge.telemetry import about, stamp, tracing
from triforge.types import Criteria, GroupTask, ProgramLimits, Task, Trajectory, TrajectoryGroup

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

EPISODES = Counter(
    "triforge_env_adapter_episodes_total", "Episodes that ended, by their end.", ["ended"]
)
EPISODE_RETRIES = Counter("triforge_env_adapter_episode_retries_total", "Fresh tries of episodes.")
EPISODE_SECONDS = Histogram(
    "triforge_env_adapter_episode_seconds",
    "Seconds from reset to end of an episode.",
    buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800),
)


@dataclass(kw_only=True)
class RolloutWorker:
    """Plays groups; a process has one, which all its jobs share.

    Attributes:
        read_task: reads a task version from the store; it blocks, so it runs in a thread.
        sessions: waits for the sessions of groups that agents play.
        keep: stores screenshots; None for environments of text.
        artifacts: the store of the critics that choose among candidates.
        concurrency: episodes in flight, over all groups.
        patience_s: seconds to wait for a policy service or a broker that does not answer.
        report_s: seconds between events that say what the environments of a family wait for (its method `activity`, if it has one).
    """

    broker: Broker
    generate: Generate
    read_task: Callable[[str], Task]
    family: Callable[[str], EnvironmentFamily]
    sessions: SessionGroups | None = None
    keep: KeepImage | None = None
    artifacts: Artifacts | None = None
    concurrency: int = 64
    patience_s: float = 300.0
    report_s: float = 8.0

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)
        self._reported = 0.0

    async def play(self, group: GroupTask) -> None:
        """Play the group, or the rest of it.

        Return at once if another worker holds the group, its run has ended, or its step is committed.

        Raises:
            UnavailableError: the broker or the database does not answer; deliver the job again later.
            NotFoundError: the store has no such task; delivering again would not help.
        """
        async with self.broker.claim_group(group) as claim:
            if not claim.granted:
                _log.info("%s is dropped: %s", group.group_id, claim.state)
                return
            if claim.payload is not None:
                await self._send_missing(claim.payload)
            elif (played := await self._played(group)) is not None:
                await self._send_group(played)
            await self._retry(lambda: self.broker.announce_if_complete(group.group_id))

    async def _played(self, group: GroupTask) -> TrajectoryGroup | None:
        """Play a group, or wait until agents have played it, and store it."""
        task = await asyncio.to_thread(self.read_task, group.task_id)
        ended = partial(self._ended, group, await asyncio.to_thread(self._criteria, task, group))
        if not group.env_adapter.by_agents:
            played = await self._play(task, group, ended)
            await self._retry(lambda: self.broker.put_payload(played))
            return played
        if self.sessions is None:
            raise UnavailableError("this worker has no store of sessions")
        played_by_agents = await self.sessions.play(
            task,
            group,
            success_at=await asyncio.to_thread(self._success_at, task, group),
            known=await self._known(group),
            ended=ended,
            over=lambda: self._retry(lambda: self.broker.is_over(group)),
        )
        if played_by_agents is not None:
            await self._retry(lambda: self.broker.put_payload(played_by_agents))
            await self.sessions.close(group)
        return played_by_agents

    def _success_at(self, task: Task, group: GroupTask) -> JsonValue:
        """Return the score from which an episode of an agent is a success: the run's, else the family's if it is installed."""
        options = group.env_adapter.options
        try:
            own = None if "success_at" in options else self.family(task.family)
        except TriforgeError:
            own = None
        return options.get("success_at", getattr(own, "success_at", None))

    async def _play(self, task: Task, group: GroupTask, ended: Ended) -> TrajectoryGroup:
        async with self._reporting(task, group):
            played = await run_group(
                lambda: environment_of(
                    group,
                    lambda: fresh_environment(self.family(task.family), group.env_adapter.options),
                ),
                self.generate,
                task,
                group,
                slots=self._slots,
                known=await self._known(group),
                ended=ended,
                keep=self.keep,
                artifacts=self.artifacts,
                patience_s=self.patience_s,
            )
        return played.model_copy(update={"programs": self._program_limits(task, group)})

    def _criteria(self, task: Task, group: GroupTask) -> Criteria:
        """Return what judges are shown of the task besides its instruction, as far as the run asks for it and the task has it."""
        shows = group.reward.shows
        if not group.votes or not {"rubric", "reference"} & {*shows}:
            return Criteria()
        try:
            known = criteria_of(self.family(task.family), task, group.env_adapter.options)
        except TriforgeError as error:
            _log.warning("%s is judged without criteria: %s", group.group_id, error.detail)
            return Criteria()
        return Criteria(
            rubric=known.rubric if "rubric" in shows else (),
            reference=known.reference if "reference" in shows else "",
        )

    @contextlib.asynccontextmanager
    async def _reporting(self, task: Task, group: GroupTask) -> AsyncIterator[None]:
        """Report meanwhile what the environments of the family wait for, once for all groups that are played."""

        async def report() -> None:
            activity = getattr(self.family(task.family), "activity", str)
            while True:
                await asyncio.sleep(self.report_s)
                text, now = activity(), time.monotonic()
                if text and now >= self._reported + self.report_s:
                    self._reported = now
                    with contextlib.suppress(TriforgeError):
                        await self.broker.emit(
                            "waits", run_id=group.run_id, step=group.step, text=text
                        )

        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()

    def _program_limits(self, task: Task, group: GroupTask) -> ProgramLimits | None:
        """Return the limits of the task's programs, if the scorer needs them; a task that raises here was not played either."""
        if not group.reward.chosen.needs_programs:
            return None
        try:
            family = self.family(task.family)
            return family.program_limits(task) if isinstance(family, ProgramFamily) else None
        except TriforgeError as error:
            _log.warning("%s has no program limits: %s", group.group_id, error.detail)
            return None

    async def _known(self, group: GroupTask) -> dict[int, Trajectory]:
        """Return the rollouts of an earlier delivery, and send their judge jobs again if they have no votes."""
        names = [trajectory_id(group.group_id, index) for index in range(group.rollouts)]
        stored = await self.broker.trajectories(names)
        known = {index: one for index, one in enumerate(stored) if one is not None}
        voted = await self.broker.voted([one.id for one in known.values()])
        for trajectory in known.values():
            if trajectory.id not in voted:
                await self._send_judge(group, trajectory)
        return known

    async def _ended(
        self, group: GroupTask, criteria: Criteria, trajectory: Trajectory
    ) -> Trajectory:
        """Store a trajectory and send its judge job; return the stored one if another worker was first."""
        _count(trajectory)
        trajectory = trajectory.model_copy(update={**stamp(), "criteria": criteria})
        if not await self._retry(lambda: self.broker.put_payload(trajectory)):
            (stored,) = await self._retry(lambda: self.broker.trajectories([trajectory.id]))
            trajectory = stored or trajectory
        await self._send_judge(group, trajectory)
        return trajectory

    async def _send_missing(self, played: TrajectoryGroup) -> None:
        await self._send_group(played)
        names = [trajectory.id for trajectory in played.trajectories]
        missing = unjudged(played, await self.broker.voted(names))
        for trajectory in played.trajectories:
            if trajectory.id in missing:
                # the judge reads the payload by its id, and it may have expired or been lost with Redis
                await self.broker.put_payload(trajectory)
                await self._send_judge(played.group, trajectory)

    async def _send_group(self, played: TrajectoryGroup) -> None:
        """Send the judge's job on a stored group as a whole, unless it is judged."""
        name = group_judgement_id(played.group.group_id)
        if name in unjudged(played, set()) and not await self._retry(
            lambda: self.broker.voted([name])
        ):
            task = judge_task(played.group)
            await self._retry(lambda: self.broker.send(task))

    async def _send_judge(self, group: GroupTask, trajectory: Trajectory) -> None:
        if group.votes == 0 or group.reward.chosen.by_group or not trajectory.measured:
            return
        task = judge_task(group, trajectory.index)
        with about(trajectory=trajectory.id), tracing.trajectory(trajectory.id, "judge again"):
            await self._retry(lambda: self.broker.send(task))

    async def _retry(self, call: Callable[[], Awaitable[_T]]) -> _T:
        return await retry(call, waiting(self.patience_s))


def _count(trajectory: Trajectory) -> None:
    outcome = trajectory.outcome
    if not trajectory.measured:
        ended = outcome.error.kind if outcome.error else "unknown"
        _log.warning(
            "%s was not measured: %s", trajectory.id, outcome.error and outcome.error.detail
        )
    else:
        ended = {1: "success", -1: "failure", None: "scored"}[outcome.value]
    EPISODES.labels(ended).inc()
    EPISODE_RETRIES.inc(trajectory.retries)
    EPISODE_SECONDS.observe(trajectory.seconds)
