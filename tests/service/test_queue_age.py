"""How long jobs have waited, as a real queue tells it."""

from __future__ import annotations

import json
import time

import redis

from tests.service.test_rollout_worker import group
from triforge.broker import ROLLOUT_QUEUE, Broker
from triforge.config import Settings
from triforge.doctor.deployment import broker as check


async def test_the_age_of_a_queue_is_that_of_its_oldest_job(broker: Broker, redis_url: str) -> None:
    assert await broker.oldest_s(ROLLOUT_QUEUE) == 0.0
    before = time.time()
    await broker.send(group())
    await broker.send(group())
    assert await broker.depth(ROLLOUT_QUEUE) == 2
    assert {f.state for f in await check(Settings(redis_url=redis_url))} == {"ok"}
    assert 0.0 <= await broker.oldest_s(ROLLOUT_QUEUE) <= time.time() - before
    with redis.Redis.from_url(redis_url) as client:  # as if the first one had come an hour ago
        message = json.loads(client.lindex(ROLLOUT_QUEUE, -1))  # type: ignore[arg-type]
        message["headers"]["triforge_sent_at"] -= 3600
        client.lset(ROLLOUT_QUEUE, -1, json.dumps(message))
    assert 3600 <= await broker.oldest_s(ROLLOUT_QUEUE) < 3600 + 600
    found = [f for f in await check(Settings(redis_url=redis_url)) if f.state != "ok"]
    assert [(f.check, f.state) for f in found] == [("queue rollout", "warning")]
    assert found[0].text.startswith("2 jobs wait, the oldest for 6")
    assert "start rollout workers" in found[0].mend
