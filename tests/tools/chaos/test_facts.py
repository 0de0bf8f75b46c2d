"""Does the test of the stack read from a real valkey which jobs were taken and never acknowledged?"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from chaos.facts import deliveries, job_of
from tests.service.conftest import broker as broker
from tests.service.conftest import redis_url as redis_url
from tests.service.conftest import valkey_server as valkey_server
from tests.service.test_rollout_worker import JUDGE_SAMPLING, group
from tests.unit.env_adapter.adaptation.test_adapt_worker import outcome
from triforge.broker import QUEUES, Broker
from triforge.types import JudgeTask


@pytest.fixture
def valkey(redis_url: str) -> Any:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def take_all(valkey: Any, **headers: str) -> None:
    """Write what kombu writes when a worker takes the waiting jobs (`QoS.append`)."""
    for queue in QUEUES:
        while (text := valkey.rpop(queue)) is not None:
            message = json.loads(text)
            message["headers"] |= headers
            tag = message["properties"]["delivery_tag"]
            valkey.zadd("unacked_index", {tag: 7.0})
            valkey.hset("unacked", tag, json.dumps([message, "", queue]))


async def send_one_of_each(broker: Broker) -> None:
    await broker.send(group())
    await broker.send(
        JudgeTask(trajectory_id="g/0", group_id="g", run_id="r", votes=1, seed=0, sampling=JUDGE_SAMPLING, deadline_s=9.0)
    )  # fmt: skip
    await broker.send(
        JudgeTask(scorer="cure", group_id="g", run_id="r", votes=1, seed=0, sampling=JUDGE_SAMPLING, deadline_s=9.0)
    )  # fmt: skip
    await broker.send(outcome())


def states(valkey: Any) -> dict[str, str]:
    return {one["job"]: one["state"] for one in deliveries(valkey)}


async def test_every_kind_of_job_is_known_by_the_name_it_is_leased_by(
    broker: Broker, valkey: Any
) -> None:
    await send_one_of_each(broker)
    texts = [text for queue in QUEUES for text in valkey.lrange(queue, 0, -1)]
    found = {job_of(text)["job"]: job_of(text)["queue"] for text in texts}
    tests = next(name for name in found if name.startswith("g") and name not in ("g", "g/0"))
    assert found == {"g": "rollout", "g/0": "judge", tests: "judge", f"adapt:{outcome().group_id}": "adapt"}  # fmt: skip


async def test_what_was_taken_is_open_until_its_work_is_done(broker: Broker, valkey: Any) -> None:
    await send_one_of_each(broker)
    take_all(valkey)
    assert set(states(valkey).values()) == {"open"}
    assert {one["at"] for one in deliveries(valkey)} == {7.0}
    async with broker.lease("g/0"):
        assert states(valkey)["g/0"] == "held"
    await broker.finish_outcome(outcome().group_id)
    await broker.retire_group("g", ("g/0",))
    assert set(states(valkey).values()) == {"settled", "dealt with"}


async def test_what_a_worker_keeps_until_it_is_due_is_put_off(broker: Broker, valkey: Any) -> None:
    await broker.send(group())
    due = datetime.now(UTC) + timedelta(hours=1)
    take_all(valkey, eta=due.isoformat())
    assert states(valkey) == {"g": "put off"}
