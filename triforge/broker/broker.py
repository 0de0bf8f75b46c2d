"""Everything in flight, typed: jobs and their leases here; payloads in `groups`, what is told in `streams`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from triforge.broker.connection import PAYLOAD_TTL_S
from triforge.broker.frames import job
from triforge.broker.groups import Groups
from triforge.broker.leases import Leases
from triforge.broker.names import (
    ADAPT_TASK,
    JUDGE_TASK,
    QUEUE_OF,
    ROLLOUT_TASK,
    SENT_AT,
    UNIT_TEST_TASK,
)
from triforge.broker.outcomes import Outcomes
from triforge.broker.scripts import ACQUIRE, HAND_ON, TAKE
from triforge.broker.sight import Sight
from triforge.broker.streams import Streams
from triforge.errors import StorageError, UnavailableError
from triforge.telemetry import tracing
from triforge.types import (
    GroupTask,
    JudgeTask,
    Message,
    TaskOutcome,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
    UnitTestTask,
)

_M = TypeVar("_M", bound=Message)

State = Literal["ended", "settled", "held", "judged", "open"]


@dataclass(frozen=True, slots=True)
class Taken(Generic[_M]):
    """How a job stands when it is taken up.

    `ended`: its run has. `settled`: its group's step is committed. `held`: another worker is at it. In these cases it is not
    ours. `judged`: it has its votes. `open`: all other cases; `payload` is what is stored of it, None if nothing is.
    """

    state: State
    payload: _M | None = None

    @property
    def ours(self) -> bool:
        """Whether we hold it now."""
        return self.state in ("judged", "open")


class Broker(Groups, Streams, Sight):
    """Typed access to everything in flight. One a process; all methods raise `UnavailableError` while Redis is away."""

    def __init__(self, redis_url: str, *, lease_s: float = 10.0) -> None:
        super().__init__(redis_url)
        self._leases = Leases(self._convoy, int(lease_s * 1000))
        self.outcomes = Outcomes(self._redis, self._call)

    async def close(self) -> None:
        """Close all connections."""
        await self._leases.close()
        await self._redis.aclose()

    # ---- jobs ----

    async def _send(self, task: str, message: Message) -> None:
        with _full_for_now():
            await self._ask("LPUSH", QUEUE_OF[task], _job(task, message))

    async def send_rollout(self, task: GroupTask) -> None:
        """Send a group to the rollout workers."""
        await self._send(ROLLOUT_TASK, task)

    async def send_judge(self, task: JudgeTask) -> None:
        """Send a trajectory to the judge workers."""
        await self._send(JUDGE_TASK, task)

    async def hand_on(self, trajectory: Trajectory, task: JudgeTask) -> bool:
        """Store a finished trajectory and send it to the judge workers, both in one step.

        False when one was stored already, which stays; nothing is sent then.
        """
        keys = (f"tf:trajectory:{trajectory.id}", QUEUE_OF[JUDGE_TASK])
        arguments = (trajectory.model_dump_json(), _job(JUDGE_TASK, task), PAYLOAD_TTL_S)
        with _full_for_now():
            return bool(await self._script(HAND_ON, keys, *arguments))

    async def send_unit_tests(self, task: UnitTestTask) -> None:
        """Send a played group to the judge workers for tests."""
        await self._send(UNIT_TEST_TASK, task)

    async def send_adapt(self, outcome: TaskOutcome) -> None:
        """Tell env_adapter how a group went; `outcomes` remembers it until it is dealt with."""
        await self.outcomes.keep(outcome)
        await self._send(ADAPT_TASK, outcome)

    async def resend_outcomes(self, *, resend_s: float) -> int:
        """Send outcomes again that nobody works on; returns how many. See `Outcomes.lost`."""
        lost = await self.outcomes.lost(lease_s=self._leases.lease_ms / 1000, resend_s=resend_s)
        for outcome in lost:
            await self._send(ADAPT_TASK, outcome)
        return len(lost)

    async def depth(self, queue: str) -> int:
        """Jobs waiting in a queue."""
        return int(await self._call(self._redis.llen(queue)))

    async def oldest_s(self, queue: str) -> float:
        """How long the oldest waiting job of a queue has waited, by our clock; 0 when it is empty.

        A job that nobody of us has sent has no age.
        """
        text = await self._call(self._redis.lindex(queue, -1))
        try:
            sent = float(json.loads(text or "{}")["headers"][SENT_AT])
        except (ValueError, TypeError, LookupError):
            return 0.0
        return max(0.0, time.time() - sent)  # sender and we may disagree a little

    # ---- leases ----

    @contextlib.asynccontextmanager
    async def lease(self, job_id: str) -> AsyncIterator[bool]:
        """Hold a job while working on it; yields False when another worker holds it.

        The lease is short and renewed by a background task, so a killed worker frees its job within seconds while an
        hour-long job stays held.
        """
        key, token = f"tf:lease:{job_id}", uuid.uuid4().hex
        keys = (key, f"tf:started:{job_id}")
        limits = (self._leases.lease_ms, PAYLOAD_TTL_S)
        if not await self._script(ACQUIRE, keys, token, *limits):
            yield False
            return
        async with self._holding(key, token):
            yield True

    @contextlib.asynccontextmanager
    async def _holding(self, key: str, token: str) -> AsyncIterator[None]:
        self._leases.keep(key, token)
        try:
            yield
        finally:
            await self._leases.release(key)

    @contextlib.asynccontextmanager
    async def take_group(self, task: GroupTask) -> AsyncIterator[Taken[TrajectoryGroup]]:
        """Take up the job of a group: its lease, as in `lease`, unless nobody waits for it; and what is stored of it."""
        name = task.group_id
        about = (task.run_id, name, "", f"tf:group:{name}")
        async with self._take(name, about, TrajectoryGroup) as taken:
            yield taken

    @contextlib.asynccontextmanager
    async def take_trajectory(self, task: JudgeTask) -> AsyncIterator[Taken[Trajectory]]:
        """Take up the job of a trajectory, likewise."""
        name = task.trajectory_id
        about = (task.run_id, task.group_id, name, f"tf:trajectory:{name}")
        async with self._take(name, about, Trajectory) as taken:
            yield taken

    @contextlib.asynccontextmanager
    async def _take(
        self, job_id: str, about: tuple[str, str, str, str], kind: type[_M]
    ) -> AsyncIterator[Taken[_M]]:
        run_id, group_id, name, payload = about
        key, token = f"tf:lease:{job_id}", uuid.uuid4().hex
        keys = (
            key, f"tf:started:{job_id}", f"tf:ended:{run_id}", f"tf:settled:{group_id}", f"tf:votes:{group_id}", payload,
        )  # fmt: skip
        arguments = (token, self._leases.lease_ms, PAYLOAD_TTL_S, name)
        found = await self._script(TAKE, keys, *arguments)
        taken: Taken[_M] = Taken(found[0])
        if not taken.ours:
            yield taken
            return
        async with self._holding(key, token):
            text = found[1] if len(found) > 1 else None
            yield taken if text is None else Taken("open", kind.model_validate_json(text))

    async def finish_votes(self, votes: TrajectoryVotes) -> bool:
        """Store a trajectory's votes unless it has some, give its lease back, and announce its group if it is complete.

        All of it at once: no other worker sees votes without the announcement that they bring.
        """
        key = f"tf:lease:{votes.trajectory_id}"
        token = await self._leases.let_go(key)
        try:
            return await self._finish(
                votes.group_id, lease=(key, token), votes=(votes.trajectory_id, votes.model_dump_json()),
            )  # fmt: skip
        except BaseException:
            if token:
                self._leases.keep(key, token)  # until whoever calls has given up
            raise

    async def is_held(self, *job_ids: str) -> bool:
        """Whether some worker holds any of the jobs now."""
        return bool(await self._ask("EXISTS", *(f"tf:lease:{e}" for e in job_ids)))

    # ---- runs ----

    async def end_run(self, run_id: str) -> None:
        """Mark a run as ended: workers drop what is left of its jobs."""
        await self._call(self._redis.set(f"tf:ended:{run_id}", "1", ex=PAYLOAD_TTL_S))

    async def begin_run(self, run_id: str) -> None:
        """Take the mark of `end_run` back."""
        await self._call(self._redis.delete(f"tf:ended:{run_id}"))

    async def is_ended(self, run_id: str) -> bool:
        """Whether nobody waits for this run's jobs any more."""
        return bool(await self._call(self._redis.exists(f"tf:ended:{run_id}")))


def _job(task: str, message: Message) -> str:
    headers = {SENT_AT: time.time(), **tracing.headers()}
    return job(task, QUEUE_OF[task], message.model_dump_json(), headers)


@contextlib.contextmanager
def _full_for_now() -> Iterator[None]:
    """A server that is full or read only may not be so for long."""
    try:
        yield
    except StorageError as error:
        raise UnavailableError(f"the queue does not take jobs ({error.detail})") from error


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended.

    Once is not enough for a task that talks to Redis: the client sends through `asyncio.wait_for`, which before Python
    3.12 swallows a cancellation that arrives just as the sending is done.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.05)
