"""Everything in flight, on a real Valkey: leases, payloads, announcements, streams and jobs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any

import pytest

from tests.batches import train_batch
from tests.service.conftest import LEASE_S
from tests.service.left_behind import leave_votes
from tests.unit.trainer.played import group_task, judged, task_of, trajectory, votes_on
from triforge.broker import (
    ADAPT_QUEUE,
    ADAPT_TASK,
    EVENTS_STREAM,
    JUDGED_STREAM,
    ROLLOUT_QUEUE,
    ROLLOUT_TASK,
    WEIGHTS_STREAM,
    Broker,
    celery_app,
    end_task,
    unjudged,
)
from triforge.errors import StorageError, UnavailableError
from triforge.supervisor.layout import free_port
from triforge.types import (
    ErrorInfo,
    JudgedGroup,
    TaskOutcome,
    TrainBatch,
    TrajectoryGroup,
    TrajectoryVotes,
    WeightsReady,
)


async def put(broker: Broker, group: JudgedGroup) -> None:
    for found in group.played.trajectories:
        await broker.put_trajectory(found)
    await broker.put_group(group.played)
    for votes in group.votes:
        if votes is not None:
            await leave_votes(broker, votes)


# ---- leases ----


async def test_a_lease_is_renewed_for_as_long_as_the_work_lasts(
    broker: Broker, other: Broker
) -> None:
    async with broker.lease("job") as mine:
        assert mine
        for _ in range(5):
            await asyncio.sleep(LEASE_S / 2)  # two and a half leases in all
            assert await other.is_held("job")
            async with other.lease("job") as theirs:
                assert not theirs
    assert not await other.is_held("job")


async def test_a_lease_runs_out_after_its_holder_was_killed(broker: Broker, raw: Any) -> None:
    await raw.set("tf:lease:job", "somebody who was killed", px=int(LEASE_S * 1000))
    async with broker.lease("job") as mine:
        assert not mine
    async with asyncio.timeout(20 * LEASE_S):
        while True:
            async with broker.lease("job") as mine:
                if mine:
                    break
            await asyncio.sleep(0.02)
    assert await raw.exists("tf:started:job")


async def test_a_lease_is_free_again_after_the_work_raised(
    broker: Broker, other: Broker, raw: Any
) -> None:
    async def work() -> None:
        async with broker.lease("job") as mine:
            assert mine
            raise ValueError("the work broke")

    with pytest.raises(ValueError, match="the work broke"):
        await work()
    assert not await other.is_held("job")
    assert await raw.exists("tf:started:job")


async def test_nobody_frees_or_renews_a_lease_that_another_took_over(
    broker: Broker, raw: Any
) -> None:
    async with broker.lease("job") as mine:
        assert mine
        await raw.set("tf:lease:job", "the new holder", px=60_000)
        await asyncio.sleep(LEASE_S)  # several renewals
        assert await raw.pttl("tf:lease:job") > 50_000
    assert await raw.get("tf:lease:job") == "the new holder"


async def test_a_holder_takes_a_lease_back_that_was_lost_while_redis_was_away(
    broker: Broker, raw: Any
) -> None:
    async with broker.lease("job") as mine:
        assert mine
        await raw.delete("tf:lease:job")
        async with asyncio.timeout(5):
            while not await broker.is_held("job"):  # noqa: ASYNC110 (another task sets it)
                await asyncio.sleep(0.02)
    assert not await broker.is_held("job")


# ---- groups ----


async def test_the_first_writer_of_a_trajectory_a_group_and_votes_wins(
    broker: Broker, other: Broker
) -> None:
    group = group_task(rollouts=1)
    first = judged(group, [1], [[[1, 1]]])
    second = judged(group, [-1], [[[-1, -1]]])
    await put(broker, first)
    assert not await other.put_trajectory(second.played.trajectories[0])
    assert not await other.put_group(second.played)
    assert second.votes[0] is not None
    assert not await leave_votes(other, second.votes[0])
    assert await other.trajectory("g-00") == first.played.trajectories[0]
    assert await other.judged_group("g") == first


async def test_two_who_finish_at_the_same_time_announce_a_group_once(
    broker: Broker, other: Broker, raw: Any
) -> None:
    group = judged(group_task(), [1, -1], [[[1, -1]], [[0, 1]]])
    await put(broker, group)
    told = await asyncio.gather(
        *(w.announce_if_complete("g") for w in (broker, other) for _ in range(10))
    )
    assert all(told)
    assert await raw.xlen(JUDGED_STREAM) == 1
    assert [name for _, name in await broker.read_judged("0", block_s=0.01)] == ["g"]


async def test_a_group_is_announced_only_when_nothing_of_it_is_missing(
    broker: Broker, raw: Any
) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])
    assert not await broker.announce_if_complete("g")
    await broker.put_group(group.played)
    assert group.votes[0] is not None
    assert group.votes[1] is not None
    await leave_votes(broker, group.votes[0])
    assert not await broker.announce_if_complete("g")
    assert await broker.judged_group("g") is None
    assert await raw.xlen(JUDGED_STREAM) == 0
    await leave_votes(broker, group.votes[1])
    assert await broker.announce_if_complete("g")
    assert await broker.judged_group("g") == group


def test_unmeasured_trajectories_and_unjudged_groups_wait_for_no_votes() -> None:
    group = group_task(rollouts=2)
    both = tuple(
        trajectory(group, i, outcome=o, lengths=[1]) for i, o in enumerate((1, None))
    )  # fmt: skip
    played = TrajectoryGroup(group=group, task=task_of(group), trajectories=both)
    assert unjudged(played, set()) == ("g-00",)
    assert unjudged(played, {"g-00"}) == ()
    silent = group.model_copy(update={"votes": 0})
    assert unjudged(played.model_copy(update={"group": silent}), set()) == ()


async def test_a_judge_that_could_not_answer_completes_the_group(broker: Broker) -> None:
    group = judged(group_task(rollouts=1), [1], [[[1, 1]]])
    await broker.put_group(group.played)
    error = ErrorInfo(kind="reward", detail="nonsense")
    none = TrajectoryVotes(trajectory_id="g-00", group_id="g", steps=(), error=error)
    await leave_votes(broker, none)
    assert await broker.announce_if_complete("g")
    found = await broker.judged_group("g")
    assert found is not None
    assert found.votes == (none,)


async def test_a_forgotten_group_leaves_nothing_behind(broker: Broker, raw: Any) -> None:
    await put(broker, judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]]))
    for job in ("g", "g-00", "g-01"):
        async with broker.lease(job):
            pass
    await broker.announce_if_complete("g")
    await broker.forget_group("g", ("g-00", "g-01"))
    assert await raw.keys("tf:*") == [JUDGED_STREAM]


async def test_every_payload_leaves_redis_by_itself_some_day(broker: Broker, raw: Any) -> None:
    await put(broker, judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]]))
    await broker.announce_if_complete("g")
    keys = [key for key in await raw.keys("tf:*") if key != JUDGED_STREAM]
    assert len(keys) == 6
    assert all([await raw.ttl(key) > 0 for key in keys])


# ---- streams ----


async def test_events_of_one_run_are_found_behind_thousands_of_others(
    broker: Broker, raw: Any
) -> None:
    async with raw.pipeline() as pipe:
        for number in range(2500):
            event = {"kind": "noise", "run_id": "other", "at": 0.0, "data": {"n": number}}
            pipe.xadd(EVENTS_STREAM, {"json": json.dumps(event)})
        await pipe.execute()
    await broker.emit("step", run_id="mine", step=3, metrics={"success": 0.5})
    for number in range(5):
        await broker.emit("noise", run_id="other", n=number)
    found = await broker.read_events("0", block_s=0.01, run_id="mine")
    assert [(event.kind, event.step) for _, event in found] == [("step", 3)]
    assert await broker.read_events(found[0][0], block_s=0.01, run_id="mine") == []
    assert len(await broker.read_events("0", block_s=0.01)) == 1000


async def test_garbage_in_a_stream_is_passed_over_and_what_comes_after_it_is_read(
    broker: Broker, raw: Any
) -> None:
    garbage: list[dict[str, Any]] = [{"json": "{"}, {"json": b"\xff\xfe"}, {"json": "{}"}, {"x": b"\xff"}]  # fmt: skip
    for stream in (JUDGED_STREAM, WEIGHTS_STREAM, EVENTS_STREAM, "tf:batches:policy"):
        for fields in garbage:
            await raw.xadd(stream, fields)
    await broker.emit("step", run_id="mine", step=3)
    ready = WeightsReady(run_id="mine", role="policy", step=1, version=2, uri="/w", digest="d")
    await broker.announce_weights(ready)
    lost = [None] * len(garbage)
    assert [found for _, found in await broker.read_weights("0", block_s=0.01)] == [*lost, ready]
    assert [found for _, found in await broker.read_batches("policy", "0", block_s=0.01)] == lost
    assert [name for _, name in await broker.read_judged("0", block_s=0.01)] == [""] * len(garbage)
    for run in ("mine", ""):
        (event,) = [found for _, found in await broker.read_events("0", block_s=0.01, run_id=run)]
        assert event.step == 3


async def test_each_learner_reads_the_batches_of_its_role_in_order(broker: Broker) -> None:
    def batch(role: Any, step: int) -> TrainBatch:
        return train_batch("m", batch_id=f"{role}{step}", role=role, step=step, version=step)

    assert await broker.last_id("tf:batches:policy") == "0"
    for step in (1, 2):
        await broker.announce_batch(batch("policy", step))
        await broker.announce_batch(batch("reward", step))
    read = await broker.read_batches("policy", "0", block_s=0.01)
    assert [b.batch_id for _, b in read] == ["policy1", "policy2"]
    again = await broker.read_batches("policy", read[0][0], block_s=0.01)
    assert [b.batch_id for _, b in again] == ["policy2"]
    assert await broker.last_id("tf:batches:policy") == read[1][0]


async def test_weights_are_read_from_where_the_reader_stands(broker: Broker) -> None:
    ready = WeightsReady(run_id="r", role="policy", step=1, version=2, uri="/w", digest="d")
    await broker.announce_weights(ready)
    [(entry, first)] = await broker.read_weights("0", block_s=0.01)
    assert first == ready
    assert await broker.read_weights(entry, block_s=0.01) == []


# ---- jobs ----


async def test_jobs_travel_as_json_with_one_message_as_their_argument(
    broker: Broker, raw: Any
) -> None:
    await broker.send_rollout(group_task("a"))
    await broker.send_rollout(group_task("b"))
    outcome = TaskOutcome(
        group_id="g", run_id="r", step=1, pool_id="p", task_id="t", purpose="train", successes=1,
        measured=2, rollouts=2, policy_version=3,
    )  # fmt: skip
    await broker.send_adapt(outcome)
    assert (await broker.depth(ROLLOUT_QUEUE), await broker.depth(ADAPT_QUEUE)) == (2, 1)
    oldest = json.loads((await raw.lrange(ROLLOUT_QUEUE, -1, -1))[0])
    assert oldest["content-type"] == "application/json"
    assert oldest["headers"]["task"] == ROLLOUT_TASK
    arguments, _, _ = json.loads(base64.b64decode(oldest["body"]))
    assert len(arguments) == 1
    assert json.loads(arguments[0])["group_id"] == "a"
    sent = json.loads((await raw.lrange(ADAPT_QUEUE, 0, 0))[0])
    assert sent["headers"]["task"] == ADAPT_TASK
    assert await raw.keys("celery-task-meta-*") == []


def test_workers_take_json_only_and_give_jobs_back_when_they_die() -> None:
    conf = celery_app("redis://127.0.0.1:1/0").conf
    assert conf.accept_content == ["json"]
    assert (conf.task_serializer, conf.task_ignore_result) == ("json", True)
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost) == (True, True)
    assert conf.worker_prefetch_multiplier == 1


def test_a_channel_keeps_its_client_until_its_connections_are_dropped(redis_url: str) -> None:
    app = celery_app(redis_url)
    with app.connection_for_write() as connection:
        channel = connection.channel()
        with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
            assert first is second
        channel._disconnect_pools()
        with channel.conn_or_acquire() as third:
            assert third is not first
            assert third.ping()
    app.close()


# ---- failures ----


async def test_everything_says_unavailable_while_redis_is_away() -> None:
    port = free_port()
    broker = Broker(f"redis://127.0.0.1:{port}/0")
    try:
        for call in (
            broker.ping(),
            broker.group("g"),
            broker.depth(ROLLOUT_QUEUE),
            broker.send_rollout(group_task("a")),
            broker.read_judged("0", block_s=0.01),
            broker.emit("step"),
        ):
            with pytest.raises(UnavailableError, match="Redis") as caught:
                await call
            assert caught.value.retry_after_s
    finally:
        await broker.close()


async def test_a_command_that_redis_refuses_is_a_storage_error_with_its_words(
    broker: Broker, raw: Any
) -> None:
    await raw.set("tf:votes:g", "not a hash")
    group = group_task()
    played = trajectory(group, 0, outcome=1, lengths=[1])
    with pytest.raises(StorageError, match="WRONGTYPE"):
        await leave_votes(broker, votes_on(played, [[1]]))


async def test_one_failed_call_finds_all_idle_connections_that_a_restart_has_closed(
    broker: Broker, raw: Any
) -> None:
    await asyncio.gather(*(broker.read_judged("0", block_s=0.1) for _ in range(4)))
    killed = await raw.client_kill_filter(_type="normal", skipme=True)
    assert killed >= 4
    with pytest.raises(UnavailableError):
        await broker.ping()
    await asyncio.gather(*(broker.read_judged("0", block_s=0.1) for _ in range(4)))


async def test_a_lease_outlives_a_refused_renewal(broker: Broker, raw: Any) -> None:
    """Redis refuses writes for a while (out of memory): the work goes on and ends well."""
    async with broker.lease("job") as mine:
        assert mine
        await raw.delete("tf:lease:job")
        await raw.rpush("tf:lease:job", "a list cannot be renewed")
        await asyncio.sleep(LEASE_S)
        await raw.delete("tf:lease:job")
        async with asyncio.timeout(5):
            while not await broker.is_held("job"):  # noqa: ASYNC110 (another task sets it)
                await asyncio.sleep(0.02)
    assert not await broker.is_held("job")


async def test_a_task_that_swallows_a_cancellation_is_ended_all_the_same():
    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(end_task(task), 10)
    assert task.cancelled()
