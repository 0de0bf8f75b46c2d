"""What becomes of a run's errands when it ends, and how far its step has come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from tests.service.fake_ring import Ring, ring_of
from triforge.errors import StorageError
from triforge.messages import ErrorInfo, GroupTask
from triforge.queues import Wire


@pytest.fixture
async def ring(wire: Wire, redis_url: str, tmp_path: Path) -> AsyncIterator[Ring]:
    async with ring_of(wire, redis_url, tmp_path) as made:
        yield made


async def test_workers_hear_that_a_run_has_failed_and_that_it_goes_on(
    ring: Ring, redis_url: str
) -> None:
    run = ring.submit()
    ring.learners["acts"].error = ErrorInfo(kind="trainer", detail="no")
    assert (await ring.conduct(run)).status == "failed"
    assert await ring.wire.is_ended(run.id)
    marked: list[int] = []

    def loses(_: GroupTask) -> bool:
        with redis.Redis.from_url(redis_url) as client:
            marked.append(int(client.exists(f"tf:ended:{run.id}")))
        return False

    ring.workers.loses = loses
    ring.learners["acts"].error = None
    ring.store.resume(run.id)
    assert (await ring.conduct(run)).status == "finished"
    assert set(marked) == {0}
    assert await ring.wire.is_ended(run.id), "duplicates of a finished run are dropped as well"


async def test_people_hear_of_every_group_as_it_lands(ring: Ring) -> None:
    run = ring.submit(steps=1, eval_every=0)
    assert (await ring.conduct(run)).status == "finished"
    heard = await ring.wire.read_events("0", block_s=0.01, run_id=run.id)
    assert [(e.step, e.data) for _, e in heard if e.kind == "group"] == [
        (1, {"purpose": "train", "successes": 1, "measured": 2, "done": n, "total": 2})
        for n in (1, 2)
    ]


async def test_a_run_goes_on_although_nobody_can_be_told_of_its_groups(ring: Ring) -> None:
    ring.troubles.plan("emit group", StorageError("the server is out of memory"), times=100)
    run = ring.submit(steps=1)
    assert (await ring.conduct(run)).status == "finished"
    assert set(ring.workers.played.values()) == {1}
    assert "emit group" in ring.troubles.visited
