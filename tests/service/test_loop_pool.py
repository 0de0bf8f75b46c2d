"""A worker of Celery's whose jobs all run in one event loop."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.contrib.testing.worker import start_worker

from tests.service.test_rollout_worker import group
from triforge.broker import ROLLOUT_QUEUE, ROLLOUT_TASK, Broker, InLoop, LoopThread, celery_app
from triforge.broker.frames import job
from triforge.broker.loop_pool import LoopPool
from triforge.errors import UnavailableError
from triforge.jobs import register
from triforge.types import GroupTask

SLOTS = 4
Work = Callable[[GroupTask], Any]


class Serving:
    """A real worker of the queue `rollout` in a thread of this process."""

    def __init__(self, redis_url: str, work: Work) -> None:
        self.loop = LoopThread()
        self.app = celery_app(redis_url)
        register(self.app, ROLLOUT_TASK, GroupTask, work, self.loop)
        self.app.conf.worker_soft_shutdown_timeout = 0
        self._running = start_worker(
            self.app, concurrency=SLOTS, pool=f"{LoopPool.__module__}:LoopPool", perform_ping_check=False,
            queues=[ROLLOUT_QUEUE], loglevel="WARNING",
        )  # fmt: skip

    def __enter__(self) -> Serving:
        self._running.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)
        self.app.close()
        self.loop.loop.call_soon_threadsafe(self.loop.loop.stop)


@pytest.fixture
def unacked(redis_url: str) -> Iterator[Callable[[], dict[bytes, bytes]]]:
    """What was delivered and is not acknowledged."""
    with redis.Redis.from_url(redis_url) as client:
        yield lambda: client.hgetall("unacked")


async def until(found: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not found():  # noqa: ASYNC110 (Celery and the server tell nobody)
            await asyncio.sleep(0.01)


async def test_a_worker_works_on_as_many_jobs_at_a_time_as_it_has_places(
    broker: Broker, redis_url: str, unacked: Callable[[], dict[bytes, bytes]]
) -> None:
    threads, seen, free = set(), [], asyncio.Event()

    async def play(task: GroupTask) -> None:
        threads.add(threading.get_ident())
        seen.append(task.group_id)
        await free.wait()

    with Serving(redis_url, play) as serving:
        for number in range(2 * SLOTS):
            await broker.send_rollout(group().model_copy(update={"group_id": f"g{number}"}))
        await until(lambda: len(seen) == SLOTS)
        assert len(unacked()) == SLOTS
        assert await broker.depth(ROLLOUT_QUEUE) == SLOTS
        serving.loop.loop.call_soon_threadsafe(free.set)
        await until(lambda: len(seen) == 2 * SLOTS and not unacked())
    assert sorted(seen) == [f"g{number}" for number in range(2 * SLOTS)]
    assert len(threads) == 1, "all of them ran in the loop"


async def test_an_job_that_meets_a_service_that_is_away_goes_back_into_the_queue(
    broker: Broker, redis_url: str, unacked: Callable[[], dict[bytes, bytes]]
) -> None:
    played = []

    async def play(task: GroupTask) -> None:
        played.append(task)
        raise UnavailableError("the database does not answer")

    with Serving(redis_url, play):
        await broker.send_rollout(group())
        # it waits in the worker for the end of its pause
        await until(lambda: any(b'\\"retries\\": 1' in message or b'"retries": 1' in message for message in unacked().values()))  # fmt: skip
        assert played == [group()]


async def test_an_job_that_breaks_is_told_of_and_does_not_come_back(
    broker: Broker,
    redis_url: str,
    unacked: Callable[[], dict[bytes, bytes]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play(task: GroupTask) -> None:
        raise ZeroDivisionError(f"in {task.group_id}")

    with Serving(redis_url, play):
        await broker.send_rollout(group())
        await until(lambda: "ZeroDivisionError" in caplog.text)
        await until(lambda: not unacked())
        assert await broker.depth(ROLLOUT_QUEUE) == 0


async def test_an_job_without_its_argument_is_left_to_celery_and_the_next_one_is_done(
    broker: Broker, redis_url: str, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    async def play(task: GroupTask) -> None:
        seen.append(task)

    with Serving(redis_url, play) as serving:
        serving.app.send_task(ROLLOUT_TASK, args=[])
        serving.app.send_task(ROLLOUT_TASK, args=[3])
        foreign = json.loads(job(ROLLOUT_TASK, ROLLOUT_QUEUE, "", {}))
        foreign["body"] = base64.b64encode(b'[{"a": 1}, {}, {}]').decode()
        await raw.lpush(ROLLOUT_QUEUE, json.dumps(foreign))
        await broker.send_rollout(group())
        await until(lambda: seen)
        await until(lambda: "TypeError" in caplog.text)
    assert seen == [group()]


async def test_a_worker_that_is_told_to_stop_ends_what_it_has_begun(
    broker: Broker, redis_url: str
) -> None:
    begun, free, ended = asyncio.Event(), asyncio.Event(), []

    async def play(task: GroupTask) -> None:
        begun.set()
        await free.wait()
        ended.append(task)

    with Serving(redis_url, play) as serving:
        await broker.send_rollout(group())
        await until(begun.is_set)
        threading.Timer(0.2, serving.loop.loop.call_soon_threadsafe, [free.set]).start()
    assert ended == [group()]


def test_threads_of_a_worker_take_turns_more_often_than_those_of_others(redis_url: str) -> None:
    async def play(_: GroupTask) -> None:
        return

    usual = 0.005  # Python's own
    sys.setswitchinterval(usual)
    try:
        with Serving(redis_url, play):
            assert sys.getswitchinterval() < usual / 10
    finally:
        sys.setswitchinterval(usual)


class Clocked(asyncio.SelectorEventLoop):
    """A loop whose clock stands still unless a test moves it."""

    now = 0.0

    def time(self) -> float:
        return self.now


def test_celery_hears_together_of_jobs_that_end_one_shortly_after_the_other() -> None:
    loop, heard, ended = Clocked(), [], []

    async def begin(payload: str, _: Any) -> None:
        await asyncio.sleep(0)
        ended.append(payload)

    way = SimpleNamespace(in_loop=InLoop(loop, begin))
    pool = LoopPool(limit=2, app=SimpleNamespace(tasks={"task": way}))
    for number in range(3):
        arguments = ("task", "id", {"args": [str(number)]})
        pool.on_apply(print, arguments, callback=heard.append)

    async def turns() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    loop.run_until_complete(turns())
    assert (sorted(ended), heard) == (["0", "1", "2"], [])
    loop.now += 1
    loop.run_until_complete(turns())
    assert [(failed, value) for failed, value, _ in heard] == [(0, None)] * 3
    pool.on_stop()  # does not wait: nothing is open
    loop.close()
