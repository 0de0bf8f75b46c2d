"""How an errand is taken up and finished, each in one step of a real Valkey."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.service.left_behind import leave_votes
from tests.service.test_queues import put
from tests.unit.trainer.played import group_task, judged
from triforge.errors import StorageError, UnavailableError
from triforge.messages import JudgeTask, Sampling
from triforge.queues import JUDGE_QUEUE, JUDGED_STREAM, Wire
from triforge.queues.connection import PAYLOAD_TTL_S
from triforge.queues.scripts import ACQUIRE, TAKE


def judge_task() -> JudgeTask:
    return JudgeTask(
        trajectory_id="g-00", group_id="g", run_id=group_task().run_id, votes=2, seed=1, sampling=Sampling(), deadline_s=9,
    )  # fmt: skip


async def test_whoever_asks_twice_for_a_lease_with_the_same_token_has_it(
    wire: Wire, raw: Any
) -> None:
    """The client repeats a command whose answer was lost with its connection."""
    keys = ["tf:lease:errand", "tf:started:errand"]
    for token, expected in (("mine", 1), ("mine", 1), ("theirs", 0)):
        assert await raw.eval(ACQUIRE, 2, *keys, token, 60_000, 60) == expected
    task = judge_task()
    keys = ["tf:lease:g-00", "tf:started:g-00", "tf:ended:r", "tf:settled:g", "tf:votes:g", "t"]
    for token, expected in (("mine", "open"), ("mine", "open"), ("theirs", "held")):
        assert (await raw.eval(TAKE, 6, *keys, token, 60_000, 60, "g-00"))[0] == expected
    async with wire.take_trajectory(task) as taken:
        assert (taken.state, taken.ours) == ("held", False)


async def test_an_errand_is_taken_up_with_all_that_is_known_of_it(wire: Wire, raw: Any) -> None:
    group, task = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]]), judge_task()
    async with wire.take_trajectory(task) as taken:
        assert (taken.state, taken.payload) == ("open", None)
    await put(wire, group)
    await raw.delete("tf:votes:g")
    async with wire.take_trajectory(task) as taken:
        assert (taken.state, taken.payload) == ("open", group.played.trajectories[0])
        async with wire.take_trajectory(task) as other:
            assert (other.state, other.ours) == ("held", False)
    async with wire.take_group(group.played.group) as found:
        assert (found.state, found.payload) == ("open", group.played)
    assert group.votes[0] is not None
    await leave_votes(wire, group.votes[0])
    async with wire.take_trajectory(task) as taken:
        assert (taken.state, taken.ours) == ("judged", True)
    await wire.settle_group("g", ("g-00", "g-01"))
    async with wire.take_trajectory(task) as taken:
        assert (taken.state, taken.ours) == ("settled", False)
    await wire.end_run(task.run_id)
    async with wire.take_group(group.played.group) as found:
        assert (found.state, found.ours) == ("ended", False)
    assert not await wire.is_held("g", "g-00")


async def test_who_finishes_a_trajectory_gives_its_lease_back_and_announces_the_group(
    wire: Wire, other: Wire, raw: Any
) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])
    first, second = group.votes
    assert first is not None
    assert second is not None
    await wire.put_group(group.played)
    async with wire.take_trajectory(judge_task()) as taken:
        assert taken.ours
        assert not await wire.finish_votes(first)
        assert not await other.is_held("g-00")
    assert await raw.xlen(JUDGED_STREAM) == 0
    assert await other.finish_votes(second), "even without the lease"
    assert await other.finish_votes(second), "and again"
    assert await raw.xlen(JUDGED_STREAM) == 1
    assert await wire.judged_group("g") == group


async def test_a_group_that_does_not_say_what_it_waits_for_is_read(wire: Wire, raw: Any) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])
    await put(wire, group)
    await raw.delete("tf:wanted:g")
    assert await wire.announce_if_complete("g")
    assert await raw.exists("tf:wanted:g")


async def test_what_many_ask_at_once_travels_together_and_a_refusal_is_one_s_own(
    wire: Wire, raw: Any
) -> None:
    await raw.set("tf:votes:b", "not a hash")
    groups = [judged(group_task(name, rollouts=1), [1], [[[1, 1]]]) for name in "abc"]
    await asyncio.gather(*(wire.put_group(group.played) for group in groups))
    votes = [vote for group in groups for vote in group.votes if vote is not None]
    before = (await raw.info("stats"))["total_reads_processed"]
    found = await asyncio.gather(*map(wire.finish_votes, votes), return_exceptions=True)
    reads = (await raw.info("stats"))["total_reads_processed"] - before
    assert (found[0], found[2]) == (True, True)
    assert isinstance(found[1], StorageError)
    assert "WRONGTYPE" in found[1].detail
    assert reads <= 3, "two trips at most, and our own question"


async def test_a_trajectory_is_handed_on_with_its_errand_or_not_at_all(
    wire: Wire, raw: Any
) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])
    first, other = group.played.trajectories
    assert await wire.hand_on(first, judge_task())
    assert await wire.trajectory("g-00") == first
    assert await wire.depth(JUDGE_QUEUE) == 1
    late = other.model_copy(update={"id": "g-00"})
    assert not await wire.hand_on(late, judge_task())
    assert await wire.trajectory("g-00") == first
    assert await wire.depth(JUDGE_QUEUE) == 1
    assert 0 < await raw.ttl("tf:trajectory:g-00") <= PAYLOAD_TTL_S


async def test_an_errand_that_cannot_be_sent_now_may_be_sent_later(wire: Wire, raw: Any) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[-1, 1]]])
    await raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(UnavailableError, match="does not take errands"):
            await wire.hand_on(group.played.trajectories[0], judge_task())
    finally:
        await raw.config_set("maxmemory", 0)
    assert await wire.hand_on(group.played.trajectories[0], judge_task())
