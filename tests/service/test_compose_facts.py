"""Does the test of the stack read from a real broker which errands were taken and never acknowledged?"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from scripts.compose_test.facts import deliveries, errand_of
from tests.service.test_adapt_errands import outcome
from tests.service.test_rollout_worker import JUDGE_SAMPLING, group
from triforge.messages import JudgeTask, UnitTestTask
from triforge.queues import QUEUES, Wire


@pytest.fixture
def broker(redis_url: str) -> Any:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def take_all(broker: Any, **headers: str) -> None:
    """What kombu writes when a worker takes what waits (`QoS.append`)."""
    for queue in QUEUES:
        while (text := broker.rpop(queue)) is not None:
            message = json.loads(text)
            message["headers"] |= headers
            tag = message["properties"]["delivery_tag"]
            broker.zadd("unacked_index", {tag: 7.0})
            broker.hset("unacked", tag, json.dumps([message, "", queue]))


async def send_one_of_each(wire: Wire) -> None:
    await wire.send_rollout(group())
    await wire.send_judge(
        JudgeTask(trajectory_id="g/0", group_id="g", run_id="r", votes=1, seed=0, sampling=JUDGE_SAMPLING, deadline_s=9.0)
    )  # fmt: skip
    await wire.send_unit_tests(
        UnitTestTask(group_id="g", run_id="r", tests=1, seed=0, sampling=JUDGE_SAMPLING, deadline_s=9.0)
    )  # fmt: skip
    await wire.send_adapt(outcome())


def states(broker: Any) -> dict[str, str]:
    return {one["errand"]: one["state"] for one in deliveries(broker)}


async def test_every_kind_of_errand_is_known_by_the_name_it_is_leased_by(
    wire: Wire, broker: Any
) -> None:
    await send_one_of_each(wire)
    texts = [text for queue in QUEUES for text in broker.lrange(queue, 0, -1)]
    found = {errand_of(text)["errand"]: errand_of(text)["queue"] for text in texts}
    tests = next(name for name in found if name.startswith("g") and name not in ("g", "g/0"))
    assert found == {"g": "rollout", "g/0": "judge", tests: "judge", f"adapt:{outcome().group_id}": "adapt"}  # fmt: skip


async def test_what_was_taken_is_open_until_its_work_is_done(wire: Wire, broker: Any) -> None:
    await send_one_of_each(wire)
    take_all(broker)
    assert set(states(broker).values()) == {"open"}
    assert {one["at"] for one in deliveries(broker)} == {7.0}
    async with wire.lease("g/0"):
        assert states(broker)["g/0"] == "held"
    await wire.outcomes.done(outcome().group_id)
    await wire.settle_group("g", ("g/0",))
    assert set(states(broker).values()) == {"settled", "dealt with"}


async def test_what_a_worker_keeps_until_it_is_due_is_put_off(wire: Wire, broker: Any) -> None:
    await wire.send_rollout(group())
    due = datetime.now(UTC) + timedelta(hours=1)
    take_all(broker, eta=due.isoformat())
    assert states(broker) == {"g": "put off"}
