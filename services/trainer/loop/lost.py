"""Lost jobs of groups in flight, by their leases and marks: pure decisions; `in_flight` acts on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from triforge.broker import GroupStatus, group_judgement_id
from triforge.rollout.transcript import trajectory_id
from triforge.types import GroupTask

_DOUBLINGS = 4  # the wait before a job is sent again doubles up to 2**4 times


@dataclass(slots=True)
class Submissions:
    """When the jobs of a group were sent: its own last at `at`, `resends` times since a worker last held it.

    `judgements` holds the judge's jobs that were sent again: the earliest time of the next submission, and their number so far.
    Each waits by itself: the leases of one dead worker run out up to a third of a lease apart.
    """

    at: float
    resends: int = 0
    judgements: dict[str, tuple[float, int]] = field(default_factory=dict)

    def again(self, now: float) -> None:
        """Record that the group's job is sent again."""
        self.at = now
        self.resends += 1

    def judge_again(self, jobs: Iterable[str], now: float, lease_s: float) -> None:
        """Record that jobs of the judge are sent again."""
        for name in jobs:
            _, resends = self.judgements.get(name, (0.0, 0))
            self.judgements[name] = (now + lease_s * 2.0**resends, min(resends + 1, _DOUBLINGS))


def judged_parts(task: GroupTask) -> tuple[str, ...]:
    """Return the judge's jobs of a group: on the whole, and on each of its trajectories."""
    parts = (trajectory_id(task.group_id, index) for index in range(task.rollouts))
    return (group_judgement_id(task.group_id), *parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """One survey of all groups in flight.

    Attributes:
        now: by the clock of `Submissions`.
        waiting: jobs in the queues.
        youngest: when the newest job was sent of those that a worker has begun.
        lease_s: seconds without a lease after which a job that was begun is lost.
        resend_s: seconds after which a job that was not begun is lost.
    """

    now: float
    waiting: int
    youngest: float
    lease_s: float
    resend_s: float

    def is_lost(self, group_id: str, sent: Submissions, seen: GroupStatus) -> bool:
        """Return whether the job of a group is lost.

        A job that was begun and has no lease has a dead worker, whatever its judges do. A job that was not begun is lost if the
        queues have been empty for `resend_s`, or if a later job was begun. The waits double each time: a worker keeps its job for
        a while if a service is away, and no queue shows the job meanwhile.
        """
        if group_id in seen.held:
            sent.resends = 0
            return False
        age = (self.now - sent.at) / 2 ** min(sent.resends, _DOUBLINGS)
        if age < self.lease_s:
            return False
        if group_id in seen.begun and not seen.played:
            return True
        passed = group_id not in seen.begun and sent.at < self.youngest
        return not seen.held and age > self.resend_s and (self.waiting == 0 or passed)

    def dead_judgements(
        self, group_id: str, sent: Submissions, seen: GroupStatus
    ) -> frozenset[str]:
        """Return the judge's jobs that were begun and have no holder; none before their wait is over."""
        dead = seen.begun - seen.held - seen.judged - {group_id}
        return frozenset(n for n in dead if self.now >= sent.judgements.get(n, (0.0, 0))[0])
