"""The jobs of a run that has ended, and the progress of its step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from tests.service.fake_loop import Loop, loop_of
from triforge.broker import Broker
from triforge.broker.protocol import key
from triforge.errors import StorageError
from triforge.types import ErrorInfo, GroupTask


@pytest.fixture
async def loop(broker: Broker, redis_url: str, tmp_path: Path) -> AsyncIterator[Loop]:
    async with loop_of(broker, redis_url, tmp_path) as made:
        yield made


async def test_workers_hear_that_a_run_has_failed_and_that_it_goes_on(
    loop: Loop, redis_url: str
) -> None:
    run = loop.submit()
    loop.learners["policy"].error = ErrorInfo(kind="trainer", detail="no")
    assert (await loop.conduct(run)).status == "failed"
    assert await loop.broker.exists(key("ended", run.id))
    marked: list[int] = []

    def loses(_: GroupTask) -> bool:
        with redis.Redis.from_url(redis_url) as client:
            marked.append(int(client.exists(f"tf:ended:{run.id}")))
        return False

    loop.workers.loses = loses
    loop.learners["policy"].error = None
    loop.store.resume(run.id)
    assert (await loop.conduct(run)).status == "finished"
    assert set(marked) == {0}
    assert await loop.broker.exists(key("ended", run.id)), (
        "duplicates of a finished run are dropped as well"
    )


async def test_people_hear_of_every_group_as_it_lands(loop: Loop) -> None:
    run = loop.submit(steps=1, eval_every=0)
    assert (await loop.conduct(run)).status == "finished"
    heard = await loop.broker.read_events("0", block_s=0.01, run_id=run.id)
    assert [(e.step, e.data) for _, e in heard if e.kind == "group"] == [
        (
            1,
            {
                "purpose": "train",
                "successes": 1,
                "score": 0.5,
                "measured": 2,
                "done": n,
                "total": 2,
            },
        )
        for n in (1, 2)
    ]


async def test_a_run_goes_on_although_its_events_cannot_be_sent(loop: Loop) -> None:
    loop.troubles.plan("emit group", StorageError("the server is out of memory"), times=100)
    run = loop.submit(steps=1)
    assert (await loop.conduct(run)).status == "finished"
    assert set(loop.workers.played.values()) == {1}
    assert "emit group" in loop.troubles.visited
