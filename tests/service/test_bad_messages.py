"""Bytes in a queue that nobody of ours has put there: the worker takes them out, says so, and goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from kombu import Queue

from triforge.broker import ROLLOUT_QUEUE, ROLLOUT_TASK, celery_app

PROPERTIES = {
    "delivery_tag": "t",
    "body_encoding": "base64",
    "delivery_info": {"exchange": "", "routing_key": ROLLOUT_QUEUE},
}
BAD: tuple[Any, ...] = (
    None,
    [1, 2],
    {},
    {"body": "e30=", "properties": {}},
    {"body": "e30=", "properties": None},
    {"body": "e30=", "properties": {**PROPERTIES, "delivery_tag": 3}},
    {"body": "e30=", "properties": {**PROPERTIES, "delivery_info": None}},
    {"body": "e30=", "properties": {**PROPERTIES, "delivery_info": {"exchange": ""}}},
    {"body": "a", "properties": PROPERTIES},
    {"body": {}, "properties": PROPERTIES},
    {"body": "e30=", "headers": 3, "properties": PROPERTIES},
    {"body": "e30=", "properties": {**PROPERTIES, "body_encoding": "rot13"}},
)


def test_messages_that_nobody_can_read_are_dropped_and_the_next_one_is_taken(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = celery_app(redis_url)
    bad = [b"", b"\xff\xfe\x00", b"{", *(json.dumps(message) for message in BAD)]
    with redis.Redis.from_url(redis_url) as raw:
        app.send_task(ROLLOUT_TASK, args=["good"])
        raw.rpush(ROLLOUT_QUEUE, *bad)  # workers take from the right
        taken: list[Any] = []

        def take(body: Any, message: Any) -> None:
            taken.append(body[0])
            message.ack()

        queues = [Queue(ROLLOUT_QUEUE)]
        with (
            app.connection_for_read() as link,
            link.Consumer(queues, callbacks=[take], accept=["json"]),
        ):
            for _ in range(len(bad) + 1):
                if not taken:
                    link.drain_events(timeout=5)
        assert taken == [["good"]]
        assert raw.llen(ROLLOUT_QUEUE) == raw.hlen("unacked") == 0
    app.close()
    said = [record for record in caplog.records if "dropped a message" in record.getMessage()]
    assert len(said) == len(bad)
