"""`Broker`: everything in flight, typed. An implementation provides the operations of the first half; the rest uses them.

    queue rollout   GroupTask     orchestrator -> env_adapter
    queue judge     JudgeTask     env_adapter  -> reward      (of a trajectory, or of a group)
    queue adapt     TaskOutcome   orchestrator -> env_adapter
    stream judged   group id      env_adapter, reward -> orchestrator
    stream batches  TrainBatch    orchestrator -> learner of the model
    stream weights  WeightsReady  learner      -> orchestrator
    stream events   Event         every service -> people

Jobs carry ids and small numbers. Payloads are stored under the ids of groups and trajectories until the step is committed.
Jobs are delivered at least once; every write is first writer wins, so nothing counts twice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from pydantic import ValidationError

from triforge.telemetry import tracing
from triforge.types import (
    CreditReport,
    Event,
    GroupJudgement,
    GroupTask,
    JudgedGroup,
    JudgeTask,
    Message,
    TaskOutcome,
    TrainBatch,
    TrainedRole,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
    WeightsReady,
)

ROLLOUT_QUEUE, JUDGE_QUEUE, ADAPT_QUEUE = "rollout", "judge", "adapt"
QUEUES: Final = (ROLLOUT_QUEUE, JUDGE_QUEUE, ADAPT_QUEUE)
ROLLOUT_TASK, JUDGE_TASK, ADAPT_TASK = "rollout", "judge", "adapt"
QUEUE_OF: Final[Mapping[str, str]] = {
    ROLLOUT_TASK: ROLLOUT_QUEUE,
    JUDGE_TASK: JUDGE_QUEUE,
    ADAPT_TASK: ADAPT_QUEUE,
}
JUDGED_STREAM, WEIGHTS_STREAM, EVENTS_STREAM = "tf:judged", "tf:weights", "tf:events"

PAYLOAD_TTL_S: Final = (
    7 * 24 * 3600.0
)  # the payloads of an abandoned group are deleted after a week
_PAGE: Final = 1000  # entries of a stream in one read
_OUTCOMES: Final = "tf:outcomes"
_OUTCOME_RESENDS: Final = 8
_TASK_OF: Final[Mapping[type[Message], str]] = {
    GroupTask: ROLLOUT_TASK,
    JudgeTask: JUDGE_TASK,
    TaskOutcome: ADAPT_TASK,
}

Queued = GroupTask | JudgeTask | TaskOutcome
Payload = Trajectory | TrajectoryGroup | TrajectoryVotes | GroupJudgement | CreditReport
_M = TypeVar("_M", bound=Message)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobClaim(Generic[_M]):
    """A worker's claim of a job.

    Attributes:
        state: `ended`: the run has ended; `committed`: the step of the group is; `held`: another worker holds the job;
            `judged`: its votes or texts are stored; `open`: all other cases.
        payload: the stored trajectory or group of an open job, None if nothing is stored.
    """

    state: Literal["ended", "committed", "held", "judged", "open"]
    payload: _M | None = None

    @property
    def granted(self) -> bool:
        """Whether this worker holds the job now."""
        return self.state in ("judged", "open")


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupStatus:
    """The status of a group in flight. Its jobs are its own, and the judge's on it and on its trajectories.

    Attributes:
        played: all trajectories are stored.
        begun: jobs that a worker held at some time.
        held: jobs that a worker holds now.
        judged: jobs whose votes or texts are stored; looked up only for jobs that were begun and are not held.
    """

    played: bool
    begun: frozenset[str]
    held: frozenset[str]
    judged: frozenset[str]


class Broker(Protocol):
    """Access to everything in flight; one a process. All methods raise `UnavailableError` while the server is away.

    Attributes:
        lease_s: how long the lease of a dead holder lasts; also the pause after an outcome was sent, which doubles each time
            that it is sent again.
    """

    lease_s: float = 10.0

    # ---- the operations of an implementation ----

    @abstractmethod
    async def submit(self, task: str, payload: str) -> None:
        """Put a job into the queue of its task, with the time and the current trace."""

    @abstractmethod
    async def depth(self, queue: str) -> int:
        """Return the number of jobs in a queue."""

    @abstractmethod
    async def oldest_s(self, queue: str) -> float:
        """Return the waiting time of a queue's oldest job; 0 for an empty queue and for jobs of other programs."""

    @abstractmethod
    async def put(self, key: str, text: str, ttl_s: float = PAYLOAD_TTL_S) -> bool:
        """Store a text for `ttl_s` unless the key has one (then False)."""

    @abstractmethod
    async def put_before(self, key: str, text: str, mark: str) -> bool | None:
        """Store a text like `put`; None if neither the key has a text, nor may it get one: the key `mark` has one."""

    @abstractmethod
    async def get(self, *keys: str) -> list[str | None]:
        """Return the texts of keys."""

    @abstractmethod
    async def exists(self, *keys: str) -> set[str]:
        """Return the keys that have a text, looked up in this order."""

    @abstractmethod
    async def delete(self, *keys: str) -> None:
        """Delete keys."""

    @abstractmethod
    async def count(self, key: str, *others: str) -> tuple[int, list[str | None]]:
        """Add one to the count of a key; return it with the texts of other keys."""

    @abstractmethod
    async def add(self, table: str, name: str) -> None:
        """Add a name to a set."""

    @abstractmethod
    async def discard(self, table: str, name: str) -> None:
        """Remove a name from a set."""

    @abstractmethod
    async def members(self, table: str) -> set[str]:
        """Return the names in a set."""

    @abstractmethod
    def lease(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Hold a job while working on it; yield False when another worker holds it.

        The lease (key `key("lease", ...)`) is short and renewed in the background: a killed worker frees its job within
        seconds, and an hour-long job stays held. The key `key("started", ...)` remains.
        """

    @abstractmethod
    async def append(self, stream: str, fields: dict[str, str]) -> None:
        """Write an entry to a stream."""

    @abstractmethod
    async def read(
        self, stream: str, after: str, *, block_s: float, count: int = _PAGE
    ) -> list[tuple[str, dict[str, str]]]:
        """Return the entries (id, fields) after an id, `0` for all; wait up to `block_s` for the first."""

    @abstractmethod
    async def last_id(self, stream: str) -> str:
        """Return the id of a stream's newest entry, `0` when it is empty."""

    @abstractmethod
    async def ping(self) -> None:
        """Raise `UnavailableError` when the server is away."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    # ---- jobs ----

    async def send(self, job: Queued) -> None:
        """Put a job into the queue of its kind; an outcome is pending until `finish_outcome`."""
        text = job.model_dump_json()
        if isinstance(job, TaskOutcome):
            await self.put(key("outcome", job.group_id), text)
            await self.put(key("outcome-pause", job.group_id), "1", self.lease_s)
            await self.add(_OUTCOMES, job.group_id)
        await self.submit(_TASK_OF[type(job)], text)

    def claim_trajectory(self, job: JudgeTask) -> AbstractAsyncContextManager[JobClaim[Trajectory]]:
        """Claim the job of a trajectory, unless its run has ended or its step is committed."""
        return self._claim(job.trajectory_id, job, key("trajectory", job.trajectory_id), Trajectory)

    def claim_group(
        self, job: GroupTask | JudgeTask
    ) -> AbstractAsyncContextManager[JobClaim[TrajectoryGroup]]:
        """Claim the job of a group or of its judgement, likewise."""
        judged = isinstance(job, JudgeTask)
        name = group_judgement_id(job.group_id) if judged else job.group_id
        return self._claim(name, job, key("group", job.group_id), TrajectoryGroup)

    @contextlib.asynccontextmanager
    async def _claim(
        self, name: str, job: GroupTask | JudgeTask, payload: str, kind: type[_M]
    ) -> AsyncIterator[JobClaim[_M]]:
        ended, committed = key("ended", job.run_id), key("committed", job.group_id)
        marks = await self.exists(ended, committed, key("votes", name))
        if marks & {ended, committed}:
            yield JobClaim("ended" if ended in marks else "committed")
            return
        async with self.lease(name) as held:
            if not held:
                yield JobClaim("held")
            elif marks:
                yield JobClaim("judged")
            else:
                yield JobClaim("open", await self._stored(kind, payload))

    async def is_over(self, job: GroupTask) -> bool:
        """Return whether the run of a group has ended or its step is committed."""
        return bool(await self.exists(key("ended", job.run_id), key("committed", job.group_id)))

    async def is_held(self, *job_ids: str) -> bool:
        """Return whether a worker holds any of the jobs now."""
        return bool(await self.exists(*keys("lease", job_ids)))

    # ---- payloads ----

    async def put_payload(self, payload: Payload) -> bool:
        """Store a trajectory, a played group, its credit, votes or a judgement; return False if it was stored before."""
        if isinstance(payload, TrajectoryGroup):
            wanted = {"run_id": payload.group.run_id, "names": unjudged(payload, set())}
            await self.put(key("wanted", payload.group.group_id), json.dumps(wanted))
        return await self.put(_place(payload), payload.model_dump_json())

    async def trajectories(self, trajectory_ids: Sequence[str]) -> list[Trajectory | None]:
        """Return finished trajectories, None for those that are missing."""
        texts = await self.get(*keys("trajectory", trajectory_ids))
        return [None if text is None else Trajectory.model_validate_json(text) for text in texts]

    async def group(self, group_id: str) -> TrajectoryGroup | None:
        """Return a played group, or None; votes may be missing."""
        return await self._stored(TrajectoryGroup, key("group", group_id))

    async def _stored(self, kind: type[_M], place: str) -> _M | None:
        (text,) = await self.get(place)
        return None if text is None else kind.model_validate_json(text)

    async def credits(self, group_ids: Sequence[str]) -> list[CreditReport | None]:
        """Return the credit of groups that a trainer has reported, None where it is missing."""
        texts = await self.get(*keys("credit", group_ids))
        return [None if text is None else CreditReport.model_validate_json(text) for text in texts]

    async def votes(self, trajectory_ids: Sequence[str]) -> list[TrajectoryVotes | None]:
        """Return the votes on trajectories, None where they are missing."""
        texts = await self.get(*keys("votes", trajectory_ids))
        return [None if t is None else TrajectoryVotes.model_validate_json(t) for t in texts]

    async def voted(self, names: Sequence[str]) -> set[str]:
        """Return the trajectories that have votes and, by `group_judgement_id`, the groups that have a judgement."""
        return await self._marked("votes", names)

    async def _marked(self, kind: str, names: Sequence[str]) -> set[str]:
        marks = await self.exists(*keys(kind, names))
        return {name for name in names if key(kind, name) in marks}

    async def forget_votes(self, group_id: str, judged_ids: Sequence[str]) -> None:
        """Delete the votes on some of a group's trajectories, or its judgement, so that they are judged again."""
        await self.delete(*keys("votes", judged_ids), key("announced", group_id))

    async def judged_group(self, group_id: str) -> JudgedGroup | None:
        """Return the group with its votes or its judgement if all that were requested are stored, else None."""
        played = await self.group(group_id)
        if played is None:
            return None
        names = [
            *(trajectory.id for trajectory in played.trajectories),
            group_judgement_id(group_id),
        ]
        texts = await self.get(*keys("votes", names))
        if unjudged(played, {name for name, text in zip(names, texts, strict=True) if text}):
            return None
        *votes, judgement = texts
        return JudgedGroup(
            played=played,
            votes=tuple(v if v is None else TrajectoryVotes.model_validate_json(v) for v in votes),
            judgement=judgement and GroupJudgement.model_validate_json(judgement),
        )

    async def announce_if_complete(self, group_id: str) -> bool:
        """Announce the group on the stream `judged`, once, if nothing of it is missing; return whether it is complete.

        The writer of the last part calls this. Two writers may both be last, and one may die before the call, so the check
        repeats on every delivery and a marker makes the announcement single.
        """
        (text,) = await self.get(key("wanted", group_id))
        if text is None:
            return False
        wanted = json.loads(text)
        needed = {key("group", group_id), *keys("votes", wanted["names"])}
        if await self.exists(*needed) != needed:
            return False
        if await self.put(key("announced", group_id), "1"):
            await self.append(JUDGED_STREAM, {"group_id": group_id, "run_id": wanted["run_id"]})
        return True

    async def forget_group(self, group_id: str, trajectory_ids: Sequence[str]) -> None:
        """Delete a group's payloads; it may be played again."""
        await self.delete(key("credit", group_id))
        await self._forget(group_id, trajectory_ids)

    async def _forget(self, group_id: str, trajectory_ids: Sequence[str]) -> None:
        jobs = (group_id, group_judgement_id(group_id), *trajectory_ids)
        await self.delete(
            key("group", group_id), key("wanted", group_id), key("announced", group_id),
            *keys("trajectory", trajectory_ids), *keys("votes", jobs), *keys("started", jobs),
        )  # fmt: skip

    async def retire_group(self, group_id: str, trajectory_ids: Sequence[str]) -> None:
        """Delete a group whose step is committed, but not its credit; its late jobs are dropped."""
        await self.put(key("committed", group_id), "1")
        await self._forget(group_id, trajectory_ids)

    # ---- in-flight status ----

    async def announced(self, group_ids: Sequence[str]) -> set[str]:
        """Return the groups that are complete."""
        return await self._marked("announced", group_ids)

    async def status(self, groups: Sequence[tuple[str, Sequence[str]]]) -> list[GroupStatus]:
        """Return the status of groups, each with the ids of its other jobs.

        Starts are read before leases and leases before votes: a job that ends meanwhile shows as held or as judged.
        """
        names = [name for group_id, parts in groups for name in (group_id, *parts)]
        marks = await self.exists(
            *keys("started", names), *keys("lease", names), *keys("group", (g for g, _ in groups))
        )
        begun = {name for name in names if key("started", name) in marks}
        held = {name for name in names if key("lease", name) in marks}
        judged = await self.voted(sorted(begun - held))
        return [
            GroupStatus(
                played=key("group", group_id) in marks,
                begun=frozenset(begun.intersection((group_id, *parts))),
                held=frozenset(held.intersection((group_id, *parts))),
                judged=frozenset(judged.intersection(parts)),
            )
            for group_id, parts in groups
        ]

    async def end_run(self, run_id: str) -> None:
        """Mark a run as ended: workers drop its remaining jobs."""
        await self.put(key("ended", run_id), "1")

    async def begin_run(self, run_id: str) -> None:
        """Remove the mark of `end_run`."""
        await self.delete(key("ended", run_id))

    # ---- outcomes: the orchestrator does not wait for adaptation, so the adapt workers search for lost ones ----

    async def finish_outcome(self, group_id: str) -> None:
        """Delete an outcome that is handled, or that cannot be."""
        await self.discard(_OUTCOMES, group_id)
        kinds = ("outcome", "outcome-sent", "outcome-pause")
        await self.delete(*(key(kind, group_id) for kind in kinds))

    async def postpone_outcome(self, group_id: str, seconds: float) -> None:
        """Send an outcome again after that time, as if for the first time: a service that it needs is away."""
        await self.delete(key("outcome-sent", group_id))
        await self._pause_outcome(group_id, seconds)

    async def _pause_outcome(self, group_id: str, seconds: float) -> None:
        await self.delete(key("outcome-pause", group_id))
        await self.put(key("outcome-pause", group_id), "1", seconds)

    async def pending_outcomes(self) -> set[str]:
        """Return the groups whose outcome was sent and is not finished."""
        return await self.members(_OUTCOMES)

    async def resend_outcomes(self) -> int:
        """Send lost outcomes again; return their number. Call it every few seconds.

        An outcome is lost when its pause is over, no worker holds it, and it was begun or is not in the queue. Each pause is
        twice as long as the one before; of several callers one sends.
        """
        pending = sorted(await self.pending_outcomes())
        if not pending:
            return 0
        jobs = {name: outcome_job(name) for name in pending}
        marks = await self.exists(
            *keys("started", jobs.values()),
            *keys("lease", jobs.values()),
            *keys("outcome-pause", jobs),
        )
        empty = await self.depth(ADAPT_QUEUE) == 0
        lost = [
            name
            for name, job in jobs.items()
            if not marks & {key("lease", job), key("outcome-pause", name)}
            and (empty or key("started", job) in marks)
        ]
        return sum([await self._resend_outcome(name) for name in lost])

    async def _resend_outcome(self, name: str) -> bool:
        if not await self.put(key("outcome-pause", name), "1", self.lease_s):
            return False
        count, (text,) = await self.count(key("outcome-sent", name), key("outcome", name))
        if text is None or count > _OUTCOME_RESENDS:
            if text is not None:
                _log.error("gave up the outcome of %s: sent %d times", name, count)
            await self.finish_outcome(name)
            return False
        await self._pause_outcome(name, self.lease_s * 2 ** (count - 1))
        await self.submit(ADAPT_TASK, text)
        return True

    # ---- streams ----

    async def read_judged(self, after: str, *, block_s: float = 1.0) -> list[tuple[str, str]]:
        """Return (entry id, group id) of groups announced after `after`; wait up to `block_s`, as all readers do."""
        entries = await self.read(JUDGED_STREAM, after, block_s=block_s)
        return [(entry, fields.get("group_id", "")) for entry, fields in entries]

    async def announce(self, message: TrainBatch | WeightsReady) -> None:
        """Send a batch to the learner of its model, or a published weight version to the orchestrator."""
        parent = tracing.parent()
        fields = {tracing.PARENT: parent} if parent else {}
        stream = batches_stream(message.role) if isinstance(message, TrainBatch) else WEIGHTS_STREAM
        await self.append(stream, {"json": message.model_dump_json(), **fields})

    async def read_batches(
        self, role: TrainedRole, after: str, *, block_s: float = 1.0
    ) -> list[tuple[str, TrainBatch | None, str]]:
        """Return (entry id, batch, `traceparent` of its sender or empty); None for an entry that is no batch."""
        entries = await self.read(batches_stream(role), after, block_s=block_s)
        return [(e, _readable(TrainBatch, f), f.get(tracing.PARENT, "")) for e, f in entries]

    async def read_weights(
        self, after: str, *, block_s: float = 1.0
    ) -> list[tuple[str, WeightsReady | None]]:
        """Return (entry id, weight version); None for an entry that announces none."""
        entries = await self.read(WEIGHTS_STREAM, after, block_s=block_s)
        return [(entry, _readable(WeightsReady, fields)) for entry, fields in entries]

    async def emit(
        self, kind: str, *, run_id: str = "", step: int | None = None, **data: Any
    ) -> None:
        """Write an event to the event stream."""
        event = Event(kind=kind, run_id=run_id, step=step, at=time.time(), data=data)
        await self.append(EVENTS_STREAM, {"json": event.model_dump_json()})

    async def read_events(
        self, after: str, *, block_s: float = 1.0, run_id: str = ""
    ) -> list[tuple[str, Event]]:
        """Return (entry id, event) of one run or of all; entries that are no events are dropped.

        An empty result means that the whole stream up to now has none, but it does not move the reader: continue at the
        `last_id` from before the call.
        """
        while True:
            entries = await self.read(EVENTS_STREAM, after, block_s=block_s)
            events = [(entry, _readable(Event, fields)) for entry, fields in entries]
            own = [(e, event) for e, event in events if event and run_id in ("", event.run_id)]
            if own or len(entries) < _PAGE:
                return own
            after = entries[-1][0]


def _readable(kind: type[_M], fields: dict[str, str]) -> _M | None:
    try:
        return kind.model_validate_json(fields.get("json", ""))
    except ValidationError:
        return None


def _place(payload: Payload) -> str:
    match payload:
        case Trajectory():
            return key("trajectory", payload.id)
        case TrajectoryGroup():
            return key("group", payload.group.group_id)
        case TrajectoryVotes():
            return key("votes", payload.trajectory_id)
        case GroupJudgement():
            return key("votes", group_judgement_id(payload.group_id))
        case CreditReport():
            return key("credit", payload.group_id)


def group_judgement_id(group_id: str) -> str:
    """Return the name of the judge's job on a group as a whole, of its lease and of its result."""
    return f"{group_id}-judgement"


def unjudged(played: TrajectoryGroup, voted: set[str]) -> tuple[str, ...]:
    """Return the jobs that still wait for the judge, if the group asked for one.

    They are ids of measured trajectories that wait for votes, or `group_judgement_id` if the scorer judges groups as a whole.
    """
    if played.group.votes == 0:
        return ()
    scorer = played.group.reward.chosen
    if scorer.by_group:
        name = group_judgement_id(played.group.group_id)
        can = played.programs is not None or not scorer.needs_programs
        wanted = can and any(t.measured for t in played.trajectories)
        return (name,) if wanted and name not in voted else ()
    return tuple(t.id for t in played.trajectories if t.measured and t.id not in voted)


def outcome_job(group_id: str) -> str:
    """Return the name of the job of an outcome, and of its lease."""
    return f"adapt:{group_id}"


def batches_stream(role: TrainedRole) -> str:
    """Return the stream of a learner's batches."""
    return f"tf:batches:{role}"


def key(kind: str, name: str) -> str:
    """Return the key of a thing; kind `lease` is a job's lease, `started` remains after the first lease."""
    return f"tf:{kind}:{name}"


def keys(kind: str, names: Iterable[str]) -> list[str]:
    """Return the keys of several things."""
    return [key(kind, name) for name in names]
