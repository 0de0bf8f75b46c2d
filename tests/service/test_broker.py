"""The contract of a broker, on a real Valkey and in memory: leases, payloads, announcements, streams, jobs, outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.batches import train_batch
from tests.service.conftest import LEASE_S
from tests.unit.trainer.played import group_task, judged, task_of, trajectory
from triforge.broker import (
    ADAPT_QUEUE,
    EVENTS_STREAM,
    JUDGED_STREAM,
    ROLLOUT_QUEUE,
    WEIGHTS_STREAM,
    Broker,
    Job,
    MemoryBroker,
    RedisBroker,
    batches_stream,
    group_judgement_id,
    outcome_job,
    unjudged,
)
from triforge.broker.protocol import key
from triforge.errors import UnavailableError
from triforge.retry import RetryPolicy
from triforge.rollout.episode import judge_task
from triforge.types import (
    ErrorInfo,
    GroupTask,
    JudgedGroup,
    TaskOutcome,
    TrainBatch,
    TrajectoryGroup,
    TrajectoryVotes,
    WeightsReady,
)


@pytest.fixture(params=["redis", "memory"])
async def any_broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    made: Broker
    if request.param == "redis":
        made = RedisBroker(request.getfixturevalue("redis_url"), lease_s=LEASE_S)
    else:
        made = MemoryBroker(lease_s=LEASE_S)
    yield made
    await made.close()


GROUP = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])


async def put(broker: Broker, group: JudgedGroup, *, votes: bool = True) -> None:
    for found in group.played.trajectories:
        await broker.put_payload(found)
    await broker.put_payload(group.played)
    for row in group.votes if votes else ():
        if row is not None:
            await broker.put_payload(row)


async def announced(broker: Broker) -> list[str]:
    return [name for _, name in await broker.read_judged("0", block_s=0.01)]


def outcome(group_id: str = "g") -> TaskOutcome:
    return TaskOutcome(
        group_id=group_id, run_id="r", step=1, pool_id="p", task_id="t", purpose="train", successes=1,
        measured=2, rollouts=2, policy_version=3,
    )  # fmt: skip


async def read(broker: Broker, stream: str) -> list[dict[str, str]]:
    return [fields for _, fields in await broker.read(stream, "0", block_s=0.01)]


# ---- leases ----


async def test_a_lease_has_one_holder_for_as_long_as_the_work_lasts(any_broker: Broker) -> None:
    async with any_broker.lease("job") as mine:
        assert mine
        for _ in range(3):
            await asyncio.sleep(LEASE_S / 2)  # one and a half leases in all
            assert await any_broker.is_held("other", "job")
            async with any_broker.lease("job") as theirs:
                assert not theirs
    assert not await any_broker.is_held("job")


async def test_a_lease_is_free_again_after_the_work_raised(any_broker: Broker) -> None:
    async def work() -> None:
        async with any_broker.lease("job"):
            raise ValueError("the work broke")

    with pytest.raises(ValueError, match="the work broke"):
        await work()
    assert not await any_broker.is_held("job")
    ((status),) = await any_broker.status([("job", ())])
    assert status.begun == {"job"}


# ---- groups ----


async def test_a_text_is_stored_before_a_mark_and_not_behind_it(any_broker: Broker) -> None:
    assert await any_broker.put_before("tf:a", "one", "tf:mark") is True
    assert await any_broker.put("tf:mark", "")
    assert await any_broker.put_before("tf:a", "two", "tf:mark") is False
    assert await any_broker.put_before("tf:b", "two", "tf:mark") is None
    assert await any_broker.get("tf:a", "tf:b") == ["one", None]


async def test_the_first_writer_wins(any_broker: Broker) -> None:
    group = group_task(rollouts=1)
    first, second = judged(group, [1], [[[1, 1]]]), judged(group, [-1], [[[-1, -1]]])
    await put(any_broker, first)
    assert second.votes[0] is not None
    assert not await any_broker.put_payload(second.played.trajectories[0])
    assert not await any_broker.put_payload(second.played)
    assert not await any_broker.put_payload(second.votes[0])
    assert (await any_broker.trajectories(["g-00"]))[0] == first.played.trajectories[0]
    assert await any_broker.trajectories(["g-01", "g-00"]) == [None, first.played.trajectories[0]]
    assert await any_broker.judged_group("g") == first


async def test_a_group_is_announced_once_and_only_when_nothing_of_it_is_missing(
    any_broker: Broker,
) -> None:
    one, other = GROUP.votes
    assert one is not None
    assert other is not None
    assert not await any_broker.announce_if_complete("g")
    await any_broker.put_payload(GROUP.played)
    await any_broker.put_payload(one)
    assert not await any_broker.announce_if_complete("g")
    assert (await any_broker.judged_group("g"), await read(any_broker, JUDGED_STREAM)) == (None, [])
    await any_broker.put_payload(other)
    assert await any_broker.announced(["g"]) == set()
    complete = await asyncio.gather(*(any_broker.announce_if_complete("g") for _ in range(10)))
    assert all(complete)
    assert await any_broker.announced(["f", "g"]) == {"g"}
    assert await read(any_broker, JUDGED_STREAM) == [{"group_id": "g", "run_id": "run"}]
    assert await announced(any_broker) == ["g"]
    assert await any_broker.judged_group("g") == GROUP


def test_unmeasured_trajectories_and_unjudged_groups_wait_for_no_votes() -> None:
    group = group_task(rollouts=2)
    both = tuple(trajectory(group, i, outcome=o, lengths=[1]) for i, o in enumerate((1, None)))
    played = TrajectoryGroup(group=group, task=task_of(group), trajectories=both)
    assert unjudged(played, set()) == ("g-00",)
    assert unjudged(played, {"g-00"}) == ()
    silent = group.model_copy(update={"votes": 0})
    assert unjudged(played.model_copy(update={"group": silent}), set()) == ()


async def test_a_judge_that_could_not_answer_completes_the_group(any_broker: Broker) -> None:
    group = judged(group_task(rollouts=1), [1], [[[1, 1]]])
    await any_broker.put_payload(group.played)
    error = ErrorInfo(kind="reward", detail="nonsense")
    none = TrajectoryVotes(trajectory_id="g-00", group_id="g", steps=(), error=error)
    await any_broker.put_payload(none)
    assert await any_broker.announce_if_complete("g")
    found = await any_broker.judged_group("g")
    assert found is not None
    assert found.votes == (none,)


async def test_votes_that_are_forgotten_are_asked_for_again(any_broker: Broker) -> None:
    await put(any_broker, GROUP)
    await any_broker.announce_if_complete("g")
    await any_broker.forget_votes("g", ["g-01"])
    assert await any_broker.voted(["g-00", "g-01"]) == {"g-00"}
    assert await any_broker.announced(["g"]) == set()
    assert not await any_broker.announce_if_complete("g")


# ---- taking up jobs ----


async def test_a_job_is_taken_up_with_all_that_is_known_of_it(any_broker: Broker) -> None:
    task = judge_task(GROUP.played.group, 0)
    async with any_broker.claim_trajectory(task) as claim:
        assert (claim.state, claim.payload) == ("open", None)
    await put(any_broker, GROUP)
    await any_broker.forget_votes("g", ["g-00"])
    async with any_broker.claim_trajectory(task) as claim:
        assert (claim.state, claim.payload) == ("open", GROUP.played.trajectories[0])
        async with any_broker.claim_trajectory(task) as second:
            assert (second.state, second.granted) == ("held", False)
    async with any_broker.claim_group(GROUP.played.group) as found:
        assert (found.state, found.payload) == ("open", GROUP.played)
    async with any_broker.claim_group(judge_task(GROUP.played.group)) as tests:
        assert (tests.state, tests.payload) == ("open", GROUP.played)
    assert GROUP.votes[0] is not None
    await any_broker.put_payload(GROUP.votes[0])
    async with any_broker.claim_trajectory(task) as claim:
        assert (claim.state, claim.granted) == ("judged", True)
    await any_broker.retire_group("g", ("g-00", "g-01"))
    async with any_broker.claim_trajectory(task) as claim:
        assert (claim.state, claim.granted) == ("committed", False)
    await any_broker.end_run("run")
    async with any_broker.claim_group(GROUP.played.group) as found:
        assert (found.state, found.granted) == ("ended", False)
    await any_broker.begin_run("run")
    async with any_broker.claim_group(GROUP.played.group) as found:
        assert found.state == "committed"
    assert not await any_broker.is_held("g", "g-00")


async def test_the_status_of_a_group_says_who_is_at_what(any_broker: Broker) -> None:
    parts = (group_judgement_id("g"), "g-00", "g-01")
    await put(any_broker, GROUP)
    await any_broker.forget_votes("g", ["g-01"])
    for name in ("g", "g-00"):
        async with any_broker.lease(name):
            pass
    async with any_broker.lease("g-01"):
        known, unknown = await any_broker.status([("g", parts), ("h", ("h-00",))])
    assert (known.played, known.begun, known.held) == (True, {"g", "g-00", "g-01"}, {"g-01"})
    assert known.judged == {"g-00"}
    assert (unknown.played, unknown.begun, unknown.held) == (False, frozenset(), frozenset())


# ---- streams ----


async def test_events_of_one_run_are_found_among_others(any_broker: Broker) -> None:
    for number in range(1005):
        await any_broker.append(EVENTS_STREAM, {"json": f'{{"kind": "n", "run_id": "x", "at": 0.0, "data": {{"n": {number}}}}}'})  # fmt: skip
    await any_broker.emit("step", run_id="mine", step=3, metrics={"success": 0.5})
    await any_broker.emit("noise", run_id="other")
    found = await any_broker.read_events("0", block_s=0.01, run_id="mine")
    assert [(event.kind, event.step) for _, event in found] == [("step", 3)]
    assert await any_broker.read_events(found[0][0], block_s=0.01, run_id="mine") == []
    assert len(await any_broker.read_events("0", block_s=0.01)) == 1000


async def test_garbage_in_a_stream_is_passed_over(any_broker: Broker) -> None:
    garbage = [{"json": "{"}, {"json": "{}"}, {"x": "y"}]
    for stream in (JUDGED_STREAM, WEIGHTS_STREAM, EVENTS_STREAM, batches_stream("policy")):
        for fields in garbage:
            await any_broker.append(stream, fields)
    await any_broker.emit("step", run_id="mine", step=3)
    ready = WeightsReady(run_id="mine", role="policy", step=1, version=2, uri="/w", digest="d")
    await any_broker.announce(ready)
    lost = [None] * len(garbage)
    weights = await any_broker.read_weights("0", block_s=0.01)
    assert [found for _, found in weights] == [*lost, ready]
    assert await any_broker.read_weights(weights[-1][0], block_s=0.01) == []
    batches = await any_broker.read_batches("policy", "0", block_s=0.01)
    assert [found for _, found, _ in batches] == lost
    assert await announced(any_broker) == [""] * 3
    (event,) = await any_broker.read_events("0", block_s=0.01)
    assert event[1].step == 3


async def test_each_learner_reads_the_batches_of_its_model_in_order(any_broker: Broker) -> None:
    def batch(role: Any, step: int) -> TrainBatch:
        return train_batch("m", batch_id=f"{role}{step}", role=role, step=step, version=step)

    assert await any_broker.last_id(batches_stream("policy")) == "0"
    for step in (1, 2):
        await any_broker.announce(batch("policy", step))
        await any_broker.announce(batch("reward", step))
    found = await any_broker.read_batches("policy", "0", block_s=0.01)
    assert [b and b.batch_id for _, b, _ in found] == ["policy1", "policy2"]
    again = await any_broker.read_batches("policy", found[0][0], block_s=0.01)
    assert [b and b.batch_id for _, b, _ in again] == ["policy2"]
    assert await any_broker.last_id(batches_stream("policy")) == found[1][0]


async def test_who_reads_a_stream_wakes_when_something_comes(any_broker: Broker) -> None:
    reading = asyncio.create_task(any_broker.read_judged("0", block_s=10))
    await asyncio.sleep(0.05)
    await any_broker.append(JUDGED_STREAM, {"group_id": "g"})
    assert [name for _, name in await asyncio.wait_for(reading, 5)] == ["g"]


# ---- jobs and outcomes ----


async def test_jobs_wait_in_their_queues(any_broker: Broker) -> None:
    assert (await any_broker.depth(ROLLOUT_QUEUE), await any_broker.oldest_s(ROLLOUT_QUEUE)) == (
        0,
        0,
    )
    await any_broker.send(group_task("a"))
    await asyncio.sleep(0.05)
    await any_broker.send(group_task("b"))
    await any_broker.send(outcome())
    assert (await any_broker.depth(ROLLOUT_QUEUE), await any_broker.depth(ADAPT_QUEUE)) == (2, 1)
    assert 0.05 <= await any_broker.oldest_s(ROLLOUT_QUEUE) < 60
    await any_broker.ping()


async def test_a_lost_outcome_is_sent_again_more_rarely_each_time_by_one_worker(
    any_broker: Broker,
) -> None:
    await any_broker.send(outcome())
    await asyncio.sleep(1.2 * LEASE_S)
    assert await any_broker.resend_outcomes() == 0, "it waits in the queue"
    async with any_broker.lease(outcome_job("g")):
        assert await any_broker.resend_outcomes() == 0, "a worker holds it"
    # its worker died: the lease is gone, that it was begun is not
    both = await asyncio.gather(any_broker.resend_outcomes(), any_broker.resend_outcomes())
    assert sorted(both) == [0, 1]
    assert await any_broker.depth(ADAPT_QUEUE) == 2
    await any_broker.postpone_outcome("g", 60.0)
    assert await any_broker.resend_outcomes() == 0, "it comes back by itself"
    assert await any_broker.pending_outcomes() == {"g"}
    await any_broker.finish_outcome("g")
    assert await any_broker.pending_outcomes() == set()
    assert await any_broker.resend_outcomes() == 0


async def test_an_outcome_that_kills_every_worker_is_given_up(
    any_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await any_broker.send(outcome())
    async with any_broker.lease(outcome_job("g")):
        pass
    sent = 0
    for _ in range(12):
        await any_broker.delete(key("outcome-pause", "g"))  # as if the pause were over
        sent += await any_broker.resend_outcomes()
    assert sent == 8
    assert "gave up the outcome of g" in caplog.text
    assert await any_broker.pending_outcomes() == set()


# ---- in memory only ----


async def test_jobs_are_done_in_process_and_tried_again() -> None:
    broker = MemoryBroker()
    errors: list[Exception] = [ValueError("a bug"), UnavailableError("away", retry_after_s=None)]
    done: list[str] = []

    async def play(task: GroupTask) -> None:
        if errors:
            raise errors.pop(0)
        done.append(task.group_id)

    job = Job("rollout", GroupTask, play, retries=RetryPolicy(first_s=0.1))
    broker.serve(ROLLOUT_QUEUE, job, concurrency=1)
    for name in "abc":
        await broker.send(group_task(name))
    async with asyncio.timeout(20):
        while len(done) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert done[0] == "c", "the bug is logged, the one that met a service that is away comes later"
    await broker.close()
