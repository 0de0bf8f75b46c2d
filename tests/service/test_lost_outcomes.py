"""Outcomes whose worker died, or that never arrived: the adapt workers miss them and send them again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio as aioredis

from services.env_adapter.adaptation.worker import AdaptWorker
from tests.service.test_adapt_jobs import outcome
from triforge.broker import ADAPT_QUEUE, Broker, outcome_job
from triforge.errors import NotFoundError, StorageError
from triforge.types import TaskOutcome

RESEND_S = 20.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(broker: Broker) -> Clock:
    made = Clock()
    broker.outcomes._clock = made
    return made


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Any]:
    client: Any = aioredis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


async def resent(broker: Broker) -> int:
    return await broker.resend_outcomes(resend_s=RESEND_S)


class Adapter:
    """Does nothing, or fails once."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.seen = 0

    async def handle(self, outcome: TaskOutcome) -> list[Any]:
        self.seen += 1
        if self.errors:
            raise self.errors.pop(0)
        return []


def worker(broker: Broker, *errors: Exception) -> AdaptWorker:
    return AdaptWorker(broker=broker, adapter=Adapter(*errors))  # type: ignore[arg-type]


async def test_an_outcome_that_its_dead_worker_began_is_sent_again_after_two_looks(
    broker: Broker, raw: Any, clock: Clock
) -> None:
    await broker.send_adapt(outcome())
    await raw.delete(ADAPT_QUEUE)  # a worker has taken it
    async with broker.lease(outcome_job("g")):
        assert [await resent(broker), await resent(broker)] == [0, 0]
    # it died: the lease is gone, the mark of the start is not
    assert [await resent(broker), await resent(broker), await resent(broker)] == [0, 1, 0]
    assert await raw.llen(ADAPT_QUEUE) == 1


async def test_an_outcome_that_was_lost_on_its_way_is_sent_again_when_the_queue_stays_empty(
    broker: Broker, raw: Any, clock: Clock
) -> None:
    await broker.send_adapt(outcome())
    assert await resent(broker) == 0
    clock.now += 2 * RESEND_S
    assert await resent(broker) == 0, "it waits in the queue"
    await raw.delete(ADAPT_QUEUE)
    assert await resent(broker) == 0
    clock.now += RESEND_S / 2
    assert await resent(broker) == 0
    clock.now += RESEND_S
    assert await resent(broker) == 1


async def test_of_two_workers_that_look_one_sends(
    broker: Broker, raw: Any, clock: Clock, redis_url: str
) -> None:
    other = Broker(redis_url)
    await broker.send_adapt(outcome())
    async with broker.lease(outcome_job("g")):
        pass
    try:
        assert [await resent(broker), await resent(other)] == [0, 0]
        assert [await resent(broker), await resent(other)] == [1, 0]
    finally:
        await other.close()


async def test_nothing_is_left_of_an_outcome_that_was_dealt_with(
    broker: Broker, raw: Any, clock: Clock
) -> None:
    await broker.send_adapt(outcome())
    await worker(broker).handle(outcome())
    assert [await resent(broker), await resent(broker)] == [0, 0]
    assert not await raw.keys("tf:outcome*")


async def test_an_outcome_that_comes_back_by_itself_is_left_alone_and_a_hopeless_one_forgotten(
    broker: Broker, raw: Any, clock: Clock
) -> None:
    await broker.send_adapt(outcome())
    with pytest.raises(StorageError):
        await worker(broker, StorageError("the disk is full")).handle(outcome())
    assert [await resent(broker), await resent(broker)] == [0, 0]
    with pytest.raises(NotFoundError):
        await worker(broker, NotFoundError("no such task")).handle(outcome())
    assert not await raw.keys("tf:outcome*")


async def test_an_outcome_that_another_worker_holds_is_dropped_here(
    broker: Broker, raw: Any, clock: Clock
) -> None:
    await broker.send_adapt(outcome())
    mine = Adapter()
    async with broker.lease(outcome_job("g")):
        await AdaptWorker(broker=broker, adapter=mine).handle(outcome())  # type: ignore[arg-type]
    assert mine.seen == 0
    assert await raw.zrange("tf:outcomes", 0, -1) == ["g"], "it is missed if the holder dies"


async def test_an_outcome_that_kills_every_worker_is_given_up(
    broker: Broker, raw: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.send_adapt(outcome())
    async with broker.lease(outcome_job("g")):
        pass
    sent = 0
    for _ in range(40):
        await raw.delete("tf:outcome-pause:g")
        sent += await resent(broker)
    assert sent == 8
    assert "gave up the outcome of g: sent 8 times" in caplog.text
    assert not await raw.keys("tf:outcome*")
