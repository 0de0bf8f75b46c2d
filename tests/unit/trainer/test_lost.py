"""When the collector takes a job for lost."""

from __future__ import annotations

import pytest

from services.trainer.loop.lost import Submissions, Survey, judged_parts
from tests.unit.trainer.played import group_task
from triforge.broker import GroupStatus, group_judgement_id

LEASE_S, RESEND_S = 10.0, 20.0


def survey(now: float = 1000.0, *, waiting: int = 0, youngest: float = 0.0) -> Survey:
    return Survey(now=now, waiting=waiting, youngest=youngest, lease_s=LEASE_S, resend_s=RESEND_S)


def seen(*, begun: str = "", held: str = "", judged: str = "", played: bool = False) -> GroupStatus:
    return GroupStatus(
        played=played, begun=frozenset(begun.split()), held=frozenset(held.split()),
        judged=frozenset(judged.split()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stands", "lost"),
    [
        (seen(begun="g", held="g"), False),
        (seen(begun="g"), True),
        (seen(begun="g g-00", held="g-00"), True),  # the player died, a judge of it is at work
        (seen(begun="g g-00", held="g-00", played=True), False),
        (seen(begun="g", played=True), False),  # its votes are waiting for a judge
        (seen(), False),  # it waits in the queue
    ],
)
def test_a_group_whose_player_died_is_lost_whatever_waits_or_is_judged(
    stands: GroupStatus, lost: bool
) -> None:
    assert survey(waiting=5).is_lost("g", Submissions(0.0), stands) is lost


def test_nothing_is_lost_before_a_lease_can_have_run_out() -> None:
    assert not survey(LEASE_S - 1).is_lost("g", Submissions(0.0), seen(begun="g"))
    assert survey(LEASE_S).is_lost("g", Submissions(0.0), seen(begun="g"))


def test_a_job_that_was_not_begun_is_lost_when_the_queues_are_empty_or_a_younger_one_was_begun() -> (
    None
):
    sent = Submissions(100.0)
    assert not survey(100.0 + RESEND_S).is_lost("g", sent, seen())
    assert survey(101.0 + RESEND_S).is_lost("g", sent, seen())
    assert not survey(200.0, waiting=3, youngest=100.0).is_lost("g", sent, seen())
    assert survey(200.0, waiting=3, youngest=101.0).is_lost("g", sent, seen())
    assert not survey(200.0, waiting=3, youngest=101.0).is_lost("g", sent, seen(begun="g", played=True))  # fmt: skip


def test_the_waits_double_until_a_worker_holds_it_again() -> None:
    sent = Submissions(0.0)
    sent.again(0.0)
    sent.again(0.0)
    assert not survey(4 * LEASE_S - 1).is_lost("g", sent, seen(begun="g"))
    assert survey(4 * LEASE_S).is_lost("g", sent, seen(begun="g"))
    assert not survey().is_lost("g", sent, seen(begun="g", held="g"))
    assert survey(LEASE_S).is_lost("g", sent, seen(begun="g"))


def test_a_judgement_that_was_begun_and_has_no_holder_is_dead_however_many_others_go_on() -> None:  # fmt: skip
    stands = seen(begun="g g-00 g-01 g-02", held="g g-01", judged="g-02")
    sent = Submissions(0.0)
    assert survey(50.0).dead_judgements("g", sent, stands) == {"g-00"}
    for wait in (LEASE_S, 2 * LEASE_S, 4 * LEASE_S):
        sent.judge_again({"g-00"}, 50.0, LEASE_S)
        assert not survey(49.0 + wait).dead_judgements("g", sent, stands)
        assert survey(50.0 + wait).dead_judgements("g", sent, stands)


def test_a_judgement_that_dies_a_moment_after_its_sibling_does_not_wait_for_the_siblings_next_time() -> None:  # fmt: skip
    sent = Submissions(0.0)
    sent.judge_again({"g-00"}, 50.0, LEASE_S)
    assert survey(51.0).dead_judgements("g", sent, seen(begun="g g-00 g-01", held="g")) == {"g-01"}


def test_the_judges_jobs_of_a_group_are_its_trajectories_and_its_tests() -> None:
    task = group_task()
    expected = (group_judgement_id(task.group_id), *(f"{task.group_id}-{i:02d}" for i in range(task.rollouts)))  # fmt: skip
    assert judged_parts(task) == expected
