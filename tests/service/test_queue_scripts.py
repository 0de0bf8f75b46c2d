"""How a job is taken up and finished, each in one step of a real Valkey."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.service.left_behind import leave_votes
from tests.service.test_queues import put
from tests.unit.trainer.played import group_task, judged
from triforge.broker import JUDGE_QUEUE, JUDGED_STREAM, Broker
from triforge.broker.connection import PAYLOAD_TTL_S
from triforge.broker.scripts import ACQUIRE, TAKE
from triforge.errors import StorageError, UnavailableError
from triforge.types import JudgeTask, Sampling


def judge_task() -> JudgeTask:
    return JudgeTask(
        trajectory_id="g-00", group_id="g", run_id=group_task().run_id, votes=2, seed=1, sampling=Sampling(), deadline_s=9,
    )  # fmt: skip


async def test_whoever_asks_twice_for_a_lease_with_the_same_token_has_it(
    broker: Broker, raw: Any
) -> None:
    """The client repeats a command whose answer was lost with its connection."""
    keys = ["tf:lease:job", "tf:started:job"]
    for token, expected in (("mine", 1), ("mine", 1), ("theirs", 0)):
        assert await raw.eval(ACQUIRE, 2, *keys, token, 60_000, 60) == expected
    task = judge_task()
    keys = ["tf:lease:g-00", "tf:started:g-00", "tf:ended:r", "tf:settled:g", "tf:votes:g", "t"]
    for token, expected in (("mine", "open"), ("mine", "open"), ("theirs", "held")):
        assert (await raw.eval(TAKE, 6, *keys, token, 60_000, 60, "g-00"))[0] == expected
    async with broker.take_trajectory(task) as taken:
        assert (taken.state, taken.ours) == ("held", False)


async def test_an_job_is_taken_up_with_all_that_is_known_of_it(broker: Broker, raw: Any) -> None:
    group, task = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]]), judge_task()
    async with broker.take_trajectory(task) as taken:
        assert (taken.state, taken.payload) == ("open", None)
    await put(broker, group)
    await raw.delete("tf:votes:g")
    async with broker.take_trajectory(task) as taken:
        assert (taken.state, taken.payload) == ("open", group.played.trajectories[0])
        async with broker.take_trajectory(task) as other:
            assert (other.state, other.ours) == ("held", False)
    async with broker.take_group(group.played.group) as found:
        assert (found.state, found.payload) == ("open", group.played)
    assert group.votes[0] is not None
    await leave_votes(broker, group.votes[0])
    async with broker.take_trajectory(task) as taken:
        assert (taken.state, taken.ours) == ("judged", True)
    await broker.settle_group("g", ("g-00", "g-01"))
    async with broker.take_trajectory(task) as taken:
        assert (taken.state, taken.ours) == ("settled", False)
    await broker.end_run(task.run_id)
    async with broker.take_group(group.played.group) as found:
        assert (found.state, found.ours) == ("ended", False)
    assert not await broker.is_held("g", "g-00")


async def test_who_finishes_a_trajectory_gives_its_lease_back_and_announces_the_group(
    broker: Broker, other: Broker, raw: Any
) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])
    first, second = group.votes
    assert first is not None
    assert second is not None
    await broker.put_group(group.played)
    async with broker.take_trajectory(judge_task()) as taken:
        assert taken.ours
        assert not await broker.finish_votes(first)
        assert not await other.is_held("g-00")
    assert await raw.xlen(JUDGED_STREAM) == 0
    assert await other.finish_votes(second), "even without the lease"
    assert await other.finish_votes(second), "and again"
    assert await raw.xlen(JUDGED_STREAM) == 1
    assert await broker.judged_group("g") == group


async def test_a_group_that_does_not_say_what_it_waits_for_is_read(
    broker: Broker, raw: Any
) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])
    await put(broker, group)
    await raw.delete("tf:wanted:g")
    assert await broker.announce_if_complete("g")
    assert await raw.exists("tf:wanted:g")


async def test_what_many_ask_at_once_travels_together_and_a_refusal_is_one_s_own(
    broker: Broker, raw: Any
) -> None:
    await raw.set("tf:votes:b", "not a hash")
    groups = [judged(group_task(name, rollouts=1), [1], [[[1, 1]]]) for name in "abc"]
    await asyncio.gather(*(broker.put_group(group.played) for group in groups))
    votes = [vote for group in groups for vote in group.votes if vote is not None]
    before = (await raw.info("stats"))["total_reads_processed"]
    found = await asyncio.gather(*map(broker.finish_votes, votes), return_exceptions=True)
    reads = (await raw.info("stats"))["total_reads_processed"] - before
    assert (found[0], found[2]) == (True, True)
    assert isinstance(found[1], StorageError)
    assert "WRONGTYPE" in found[1].detail
    assert reads <= 3, "two trips at most, and our own question"


async def test_a_trajectory_is_handed_on_with_its_job_or_not_at_all(
    broker: Broker, raw: Any
) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])
    first, other = group.played.trajectories
    assert await broker.hand_on(first, judge_task())
    assert await broker.trajectory("g-00") == first
    assert await broker.depth(JUDGE_QUEUE) == 1
    late = other.model_copy(update={"id": "g-00"})
    assert not await broker.hand_on(late, judge_task())
    assert await broker.trajectory("g-00") == first
    assert await broker.depth(JUDGE_QUEUE) == 1
    assert 0 < await raw.ttl("tf:trajectory:g-00") <= PAYLOAD_TTL_S


async def test_an_job_that_cannot_be_sent_now_may_be_sent_later(broker: Broker, raw: Any) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])
    await raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(UnavailableError, match="does not take jobs"):
            await broker.hand_on(group.played.trajectories[0], judge_task())
    finally:
        await raw.config_set("maxmemory", 0)
    assert await broker.hand_on(group.played.trajectories[0], judge_task())
