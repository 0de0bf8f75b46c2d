"""Jobs as they lie in a queue: what Celery would have put there, each sender hearing of its own alone."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from tests.unit.trainer.played import group_task
from triforge.broker import ADAPT_QUEUE, ROLLOUT_QUEUE, ROLLOUT_TASK, Broker, celery_app
from triforge.broker.names import SENT_AT
from triforge.errors import UnavailableError
from triforge.rollout.judging import judge_task

# what differs from message to message, and what is only for logs
OWN = {"id", "root_id", "origin", "argsrepr", SENT_AT, "correlation_id", "reply_to", "delivery_tag"}


def plain(message: str) -> dict[str, Any]:
    """A message without what is its own, its body read."""
    found: dict[str, Any] = json.loads(message)
    for part in ("headers", "properties"):
        assert OWN & set(found[part]), "each message has something of its own"
        found[part] = {name: v for name, v in found[part].items() if name not in OWN}
    found["body"] = json.loads(base64.b64decode(found["body"]))
    return found


async def test_an_job_is_the_message_that_celery_would_have_sent(
    broker: Broker, redis_url: str, raw: Any
) -> None:
    task = group_task("ä")
    app = celery_app(redis_url)
    app.send_task(ROLLOUT_TASK, args=[task.model_dump_json()], headers={SENT_AT: 1.0})
    app.close()
    await broker.send_rollout(task)
    ours, theirs = await raw.lrange(ROLLOUT_QUEUE, 0, -1)
    assert plain(ours) == plain(theirs)
    for part in ("headers", "properties"):
        assert set(json.loads(ours)[part]) == set(json.loads(theirs)[part])


async def test_each_job_has_names_of_its_own(broker: Broker, raw: Any) -> None:
    await asyncio.gather(*(broker.send_rollout(group_task("a")) for _ in range(2)))
    first, second = (json.loads(m) for m in await raw.lrange(ROLLOUT_QUEUE, 0, -1))
    assert first["headers"]["id"] != second["headers"]["id"]
    assert first["properties"]["delivery_tag"] != second["properties"]["delivery_tag"]


async def test_an_job_that_is_refused_fails_its_own_sender_alone(broker: Broker, raw: Any) -> None:
    await raw.set(ROLLOUT_QUEUE, "not a list")
    group = group_task("a")
    refused, taken = await asyncio.gather(
        broker.send_rollout(group), broker.send_judge(judge_task(group, 0)), return_exceptions=True
    )
    assert isinstance(refused, UnavailableError)
    assert "does not take jobs" in refused.detail
    assert taken is None


async def test_a_sender_that_gives_up_holds_nobody_up(broker: Broker) -> None:
    gone, stays = (
        asyncio.create_task(broker.send_rollout(group_task(n))) for n in ("gone", "stays")
    )
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await broker.depth(ROLLOUT_QUEUE) >= 1
    assert await broker.depth(ADAPT_QUEUE) == 0
