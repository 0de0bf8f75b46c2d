"""What a worker tells the queue of jobs that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from kombu import Consumer, Queue
from kombu.asynchronous import Hub

from triforge.broker import ROLLOUT_QUEUE, ROLLOUT_TASK, celery_app

Left = Callable[[], tuple[int, int]]


@pytest.fixture
def loop(link: Any) -> Iterator[Hub]:
    """A worker's loop, which the connection is part of."""
    hub = Hub()
    link.transport.register_with_event_loop(link.connection, hub)
    yield hub
    hub.close()


@pytest.fixture
def link(redis_url: str) -> Iterator[Any]:
    """A connection to a queue with four jobs."""
    app = celery_app(redis_url)
    for number in range(4):
        app.send_task(ROLLOUT_TASK, args=[str(number)])
    with app.connection_for_read() as link:
        yield link
    app.close()


@pytest.fixture
def left(redis_url: str) -> Iterator[Left]:
    """How many jobs are not acknowledged: by the two places that keep them."""
    with redis.Redis.from_url(redis_url) as client:
        yield lambda: (client.hlen("unacked"), client.zcard("unacked_index"))


@pytest.fixture
def channel(link: Any) -> Iterator[Any]:
    """Its channel."""
    channel = link.channel()
    yield channel
    channel.close()


@pytest.fixture
def messages(link: Any, channel: Any) -> list[Any]:
    """The four jobs, taken and not acknowledged."""
    taken: list[Any] = []
    Consumer(channel, [Queue(ROLLOUT_QUEUE)], on_message=taken.append).consume()
    while len(taken) < 4:
        link.drain_events(timeout=5)
    return taken


def test_jobs_that_end_in_one_turn_of_the_loop_are_acknowledged_together(
    channel: Any, messages: list[Any], loop: Hub, left: Left
) -> None:
    channel.basic_qos(prefetch_count=4)
    assert not channel.qos.can_consume()
    for message in messages[:3]:
        message.ack()
    assert left() == (4, 4), "not yet"
    assert channel.qos.can_consume(), "their places are free all the same"
    for tick in loop.on_tick:
        tick()
    assert left() == (1, 1)


def test_without_a_loop_an_job_is_acknowledged_at_once(messages: list[Any], left: Left) -> None:
    messages[0].ack()
    assert left() == (3, 3)


@pytest.mark.usefixtures("loop")
def test_what_has_ended_does_not_go_back_with_the_end_of_the_worker(
    channel: Any, messages: list[Any], left: Left, redis_url: str
) -> None:
    messages[0].ack()
    channel.close()
    assert left() == (0, 0)
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen(ROLLOUT_QUEUE) == 3


@pytest.mark.usefixtures("loop")
def test_jobs_whose_connection_was_lost_are_acknowledged_without_the_loop(
    link: Any, messages: list[Any], left: Left
) -> None:
    messages[0].ack()
    link.transport.cycle.close()  # as when Celery connects anew
    assert left() == (3, 3)
    messages[1].ack()
    assert left() == (2, 2)
