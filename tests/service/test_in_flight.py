"""Groups come in although jobs and announcements are lost, and no job is sent again while a worker holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.trainer.loop.in_flight import InFlight
from tests.service.keyed import Clock
from tests.service.test_broker import put
from tests.unit.trainer.played import group_task, judged
from triforge.broker import ROLLOUT_QUEUE, Queued, RedisBroker
from triforge.errors import TrainerError
from triforge.event_loop import end_task
from triforge.types import GroupTask, JudgedGroup, JudgeTask, Sampling

LEASE_S, RESEND_S, DEADLINE_S = 10.0, 20.0, 1000.0
VERSIONS = {"policy": 1, "reward": 1}


class Sent(RedisBroker):
    """A broker that keeps rollout jobs in a list instead of the queue."""

    def __init__(self, redis_url: str) -> None:
        super().__init__(redis_url, lease_s=30.0)
        self.sent: list[str] = []
        self.others: list[JudgeTask] = []

    async def send(self, job: Queued) -> None:
        if isinstance(job, GroupTask):
            assert job.oldest == VERSIONS
            self.sent.append(job.group_id)
        else:
            assert isinstance(job, JudgeTask)
            self.others.append(job)
            await super().send(job)

    async def read_judged(self, after: str, *, block_s: float = 1.0) -> list[tuple[str, str]]:
        return await super().read_judged(after, block_s=min(block_s, 0.001))


class Scene:
    """Groups in flight, their clock and what it sent."""

    def __init__(self, broker: Sent) -> None:
        self.broker, self.clock = broker, Clock(0.0)

        self.in_flight = InFlight(
            broker, resend_s=RESEND_S, lease_s=LEASE_S, check=self._check, sweep_s=1.0, clock=self.clock
        )  # fmt: skip
        self._rounds = 0

    async def _check(self) -> None:
        self._rounds += 1

    def play(self, *tasks: GroupTask) -> asyncio.Task[list[JudgedGroup]]:
        work = self.in_flight.play(list(tasks), deadline_s=DEADLINE_S, versions=VERSIONS)
        self._work = asyncio.create_task(work)
        return self._work

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and wait until it has looked around since, or is done."""
        self.clock.now += seconds
        after = self._rounds + 2
        async with asyncio.timeout(20):
            while self._rounds < after and not self._work.done():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
async def scene(redis_url: str) -> AsyncIterator[Scene]:
    broker = Sent(redis_url)
    yield Scene(broker)
    await broker.close()


@pytest.fixture
async def waiting(scene: Scene) -> AsyncIterator[asyncio.Task[list[JudgedGroup]]]:
    """The gathering of one group, `g`, that was sent once and not heard of since."""
    work = scene.play(group_task("g"))
    await scene.pass_time(0.0)
    assert scene.broker.sent == ["g"]
    yield work
    await end_task(work)  # type: ignore[arg-type]


def complete(name: str = "g", **changes: int) -> JudgedGroup:
    return judged(group_task(name), [1, -1], [[[1, 1]], [[1, -1]]], **changes)


async def done(work: asyncio.Task[list[JudgedGroup]]) -> list[JudgedGroup]:
    return await asyncio.wait_for(work, 20)


Playing = asyncio.Task[list[JudgedGroup]]


# ---- the plain way ----


async def test_groups_come_back_in_the_order_of_the_tasks(scene: Scene) -> None:
    work = scene.play(group_task("a"), group_task("b"), group_task("c"))
    await scene.pass_time(0.0)
    for name in ("c", "a", "b"):
        await put(scene.broker, complete(name))
        await scene.broker.announce_if_complete(name)
    assert [group.played.group.group_id for group in await done(work)] == ["a", "b", "c"]
    assert sorted(scene.broker.sent) == ["a", "b", "c"]


async def test_a_group_that_is_complete_already_is_not_played_again(scene: Scene) -> None:
    await put(scene.broker, complete("a"))
    work = scene.play(group_task("a"))
    assert await done(work) == [complete("a")]
    assert scene.broker.sent == []


# ---- what is lost ----


async def test_a_lost_announcement_is_found_by_the_sweep(scene: Scene, waiting: Playing) -> None:
    await put(scene.broker, complete())
    await scene.broker._redis.set(
        "tf:announced:g", "1"
    )  # and the worker died before its announcement
    await scene.pass_time(0.0)
    assert not waiting.done()
    await scene.pass_time(2.0)
    assert await done(waiting) == [complete()]
    assert scene.broker.sent == ["g"]


async def test_a_job_that_was_never_started_is_sent_again_after_resend_s(
    scene: Scene, waiting: Playing
) -> None:
    await scene.pass_time(RESEND_S - 1)
    assert scene.broker.sent == ["g"]
    await scene.pass_time(2.0)
    assert scene.broker.sent == ["g", "g"]
    await scene.pass_time(2.0)
    assert scene.broker.sent == ["g", "g"], "the wait begins anew"
    assert scene.in_flight.resent == 1


async def test_an_job_that_waits_in_a_queue_is_not_sent_again(
    scene: Scene, waiting: Playing
) -> None:
    await RedisBroker.send(scene.broker, group_task("g"))
    assert await scene.broker.depth(ROLLOUT_QUEUE) == 1
    await scene.pass_time(10 * RESEND_S)
    assert scene.broker.sent == ["g"]


async def test_an_job_whose_worker_died_is_sent_again_when_its_lease_is_gone(
    scene: Scene, waiting: Playing
) -> None:
    async with scene.broker.lease("g"):
        pass  # started, neither held nor played
    await RedisBroker.send(scene.broker, group_task("another"))  # although the queue is not empty
    await scene.pass_time(LEASE_S - 1)
    assert scene.broker.sent == ["g"]
    await scene.pass_time(2.0)
    assert scene.broker.sent == ["g", "g"]


async def test_an_job_is_never_sent_again_while_a_worker_holds_it(
    scene: Scene, waiting: Playing
) -> None:
    async with scene.broker.lease("g"):
        await scene.pass_time(10 * RESEND_S)
        assert scene.broker.sent == ["g"]


async def test_an_job_is_never_sent_again_while_a_judge_holds_one_of_its_trajectories(
    scene: Scene, waiting: Playing
) -> None:
    await put(scene.broker, complete(), votes=False)
    async with scene.broker.lease("g-01"):
        await scene.pass_time(10 * RESEND_S)
        assert scene.broker.sent == ["g"]
    await scene.pass_time(2.0)
    assert scene.broker.sent == ["g", "g"], "the judge died: the worker sends its job again"


async def test_votes_that_wait_for_a_judge_are_waited_for(scene: Scene, waiting: Playing) -> None:
    await put(scene.broker, complete(), votes=False)
    task = JudgeTask(
        trajectory_id="g-00", group_id="g", run_id="run", votes=2, seed=1, sampling=Sampling(),
        deadline_s=5.0,
    )  # fmt: skip
    await scene.broker.send(task)
    await scene.pass_time(10 * RESEND_S)
    assert scene.broker.sent == ["g"]


async def test_a_judgement_whose_worker_died_is_sent_again_although_others_wait_in_the_queue(
    scene: Scene, waiting: Playing
) -> None:
    async with scene.broker.lease("g"), scene.broker.lease("g-01"):
        async with scene.broker.lease("g-00"):
            await scene.pass_time(LEASE_S * 3)
            assert scene.broker.others == []
        await scene.pass_time(
            1.5
        )  # its judge died; the group is still played, the other one judged
        assert [job.trajectory_id for job in scene.broker.others] == ["g-00"]
        await scene.pass_time(LEASE_S / 2)
        assert [job.trajectory_id for job in scene.broker.others] == ["g-00"]
        assert scene.in_flight.resent == 1
    assert scene.broker.sent == ["g"]


async def test_a_restarted_orchestrator_does_not_send_what_a_worker_or_a_judge_still_holds(
    scene: Scene,
) -> None:
    await put(scene.broker, complete("b"), votes=False)
    async with scene.broker.lease("a"), scene.broker.lease("b-00"):
        work = scene.play(*(group_task(name) for name in "abc"))
        await scene.pass_time(0.0)
        assert scene.broker.sent == ["c"]
    await scene.pass_time(RESEND_S + 1)
    assert sorted(scene.broker.sent) == ["a", "b", "c", "c"]
    await end_task(work)  # type: ignore[arg-type]


async def test_an_announced_group_whose_payload_is_gone_is_played_again(
    scene: Scene, waiting: Playing
) -> None:
    await put(scene.broker, complete())
    await scene.broker._redis.set("tf:announced:g", "1")
    await scene.broker.forget_group("g", ("g-00", "g-01"))
    await scene.pass_time(RESEND_S + 1)
    assert scene.broker.sent == ["g", "g"]


# ---- whose weights ----


@pytest.mark.parametrize("whose", ["version", "judge_version"])
async def test_a_group_of_foreign_weights_is_forgotten_and_played_again(
    scene: Scene, waiting: Playing, whose: str
) -> None:
    await put(scene.broker, complete(**{whose: 0}))
    await scene.broker.announce_if_complete("g")
    await scene.pass_time(0.0)
    assert scene.broker.sent == ["g", "g"]
    assert await scene.broker.group("g") is None
    await put(scene.broker, complete())
    await scene.broker.announce_if_complete("g")
    assert await done(waiting) == [complete()]
    assert scene.in_flight.replayed == 1


# ---- the end ----


async def test_a_group_list_of_which_nothing_could_be_measured_fails_with_the_first_reason(
    scene: Scene,
) -> None:
    broken = judged(group_task("g"), [None, None], [[[]], [[]]])
    await put(scene.broker, broken.model_copy(update={"votes": ()}))
    with pytest.raises(TrainerError, match=r"none of 2 episodes could be measured.*it broke"):
        await done(scene.play(group_task("g")))
    assert await scene.broker.group("g") is None, "it is played afresh when the run is resumed"
