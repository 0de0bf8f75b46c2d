"""Whether anybody still works on a group in flight, from its leases and marks: pure decisions, `in_flight` acts on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from triforge.broker import GroupStatus, unit_tests_id
from triforge.rollout.transcript import trajectory_id
from triforge.types import GroupTask

_DOUBLINGS = 4  # a job that is sent again and again waits up to 2**4 times as long for the next


@dataclass(slots=True)
class Submissions:
    """When the jobs of a group were sent: `at` its own, the last time, and how often since a worker was last seen at it.

    `judgements` holds the judge's jobs that were sent again: when at the earliest the next time, and how often already.
    Each waits for itself: leases of one dead worker run out up to a third of a lease apart.
    """

    at: float
    resends: int = 0
    judgements: dict[str, tuple[float, int]] = field(default_factory=dict)

    def again(self, now: float) -> None:
        """The group's job is sent again."""
        self.at = now
        self.resends += 1

    def judge_again(self, jobs: Iterable[str], now: float, lease_s: float) -> None:
        """Some of the judge's are."""
        for name in jobs:
            _, resends = self.judgements.get(name, (0.0, 0))
            self.judgements[name] = (now + lease_s * 2.0**resends, min(resends + 1, _DOUBLINGS))


def judged_parts(task: GroupTask) -> tuple[str, ...]:
    """The judge's jobs of a group: for its tests, or on each of its trajectories."""
    parts = (trajectory_id(task.group_id, index) for index in range(task.rollouts))
    return (unit_tests_id(task.group_id), *parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """One survey of everything in flight.

    Attributes:
        now: by the clock of `Submissions`.
        waiting: jobs in the queues.
        youngest: when the last one was sent of those that a worker has begun.
        lease_s: a job that was begun is lost when its lease has been gone for so long.
        resend_s: one that nobody has begun is lost after that.
    """

    now: float
    waiting: int
    youngest: float
    lease_s: float
    resend_s: float

    def is_lost(self, group_id: str, sent: Submissions, seen: GroupStatus) -> bool:
        """Whether nobody plays a group any more, or nobody ever will.

        A lease that is gone although the job was begun means that its worker died, whatever the judges of it do. What
        nobody has begun is lost when there has been nothing in the queues for `resend_s`, or when one that was sent later
        was begun. The waits double each time: a worker that met a service that is away keeps its job for a while, and no
        queue shows it meanwhile.
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
        """The judge's jobs that were begun and that nobody holds; none before its wait is over."""
        dead = seen.begun - seen.held - seen.judged - {group_id}
        return frozenset(n for n in dead if self.now >= sent.judgements.get(n, (0.0, 0))[0])
