"""The broker on Redis: expiry, dead holders, restarts, refusals, and the jobs that Celery writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest
import redis

from tests.service.conftest import LEASE_S
from tests.service.test_broker import GROUP, put
from tests.unit.trainer.played import group_task
from triforge.broker import (
    EVENTS_STREAM,
    JUDGED_STREAM,
    ROLLOUT_QUEUE,
    Broker,
    RedisBroker,
)
from triforge.config import Settings
from triforge.doctor.deployment import broker as check
from triforge.errors import StorageError, UnavailableError
from triforge.supervisor.ports import free_port

# ---- leases ----


async def test_a_lease_runs_out_after_its_holder_was_killed(broker: Broker, raw: Any) -> None:
    await raw.set("tf:lease:job", "a killed holder", px=int(LEASE_S * 1000))
    async with broker.lease("job") as mine:
        assert not mine
    assert await raw.exists("tf:started:job"), "marked before the lease: its holder may die at once"
    async with asyncio.timeout(20 * LEASE_S):
        while True:
            async with broker.lease("job") as mine:
                if mine:
                    break
            await asyncio.sleep(0.02)


async def test_a_lease_with_a_new_holder_is_neither_freed_nor_renewed(
    broker: Broker, raw: Any
) -> None:
    async with broker.lease("job") as mine:
        assert mine
        await raw.set("tf:lease:job", "the new holder", px=60_000)
        await asyncio.sleep(LEASE_S)  # several renewals
        assert await raw.pttl("tf:lease:job") > 50_000
    assert await raw.get("tf:lease:job") == "the new holder"


@pytest.mark.parametrize("refused", [False, True])
async def test_a_holder_takes_a_lease_back_that_was_lost(
    broker: Broker, raw: Any, refused: bool
) -> None:
    """While Redis was away, or refused writes for a while: the work goes on and ends well."""
    async with broker.lease("job") as mine:
        assert mine
        await raw.delete("tf:lease:job")
        if refused:
            await raw.rpush("tf:lease:job", "a list cannot be renewed")
            await asyncio.sleep(LEASE_S)
            await raw.delete("tf:lease:job")
        async with asyncio.timeout(5):
            while not await broker.is_held("job"):  # noqa: ASYNC110 (another task sets it)
                await asyncio.sleep(0.02)
    assert not await broker.is_held("job")


# ---- payloads ----


async def test_every_payload_goes_away_some_day_and_nothing_is_left_of_a_forgotten_group(
    broker: Broker, raw: Any
) -> None:
    await put(broker, GROUP)
    for job in ("g", "g-00", "g-01"):
        async with broker.lease(job):
            pass
    await broker.announce_if_complete("g")
    keys = [key for key in await raw.keys("tf:*") if key != JUDGED_STREAM]
    assert len(keys) == 10
    assert all([await raw.ttl(key) > 0 for key in keys])
    await broker.forget_group("g", ("g-00", "g-01"))
    assert await raw.keys("tf:*") == [JUDGED_STREAM]


async def test_bytes_that_are_no_text_are_passed_over(broker: Broker, raw: Any) -> None:
    await raw.xadd(EVENTS_STREAM, {"json": b"\xff\xfe"})
    await broker.emit("step", step=3)
    assert [event.step for _, event in await broker.read_events("0", block_s=0.01)] == [3]


# ---- jobs ----


async def test_the_age_of_a_queue_is_that_of_its_oldest_job(broker: Broker, redis_url: str) -> None:
    assert await broker.oldest_s(ROLLOUT_QUEUE) == 0.0
    before = time.time()
    await broker.send(group_task())
    await broker.send(group_task())
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


async def test_what_others_put_into_a_queue_has_no_age(broker: Broker, raw: Any) -> None:
    for text in ("no JSON", "[]", "{}", '{"headers": {"triforge_sent_at": "yesterday"}}'):
        await raw.delete(ROLLOUT_QUEUE)
        await raw.lpush(ROLLOUT_QUEUE, text)
        assert await broker.oldest_s(ROLLOUT_QUEUE) == 0.0, text


# ---- failures ----


async def test_everything_says_unavailable_while_redis_is_away() -> None:
    broker = RedisBroker(f"redis://127.0.0.1:{free_port()}/0")
    try:
        for call in (
            broker.ping(),
            broker.group("g"),
            broker.depth(ROLLOUT_QUEUE),
            broker.send(group_task("a")),
            broker.read_judged("0", block_s=0.01),
            broker.emit("step"),
        ):
            with pytest.raises(UnavailableError, match="Redis") as caught:
                await asyncio.wait_for(call, 10)
            assert caught.value.retry_after_s
    finally:
        await broker.close()


async def test_a_server_that_is_full_takes_jobs_later(broker: Broker, raw: Any) -> None:
    await raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(UnavailableError, match="does not take jobs"):
            await broker.send(group_task())
    finally:
        await raw.config_set("maxmemory", 0)
    await broker.send(group_task())
    assert await broker.depth(ROLLOUT_QUEUE) == 1


async def test_a_command_that_redis_refuses_is_a_storage_error_with_its_words(
    broker: Broker, raw: Any
) -> None:
    await raw.set(JUDGED_STREAM, "no stream")
    with pytest.raises(StorageError, match="WRONGTYPE"):
        await broker.append(JUDGED_STREAM, {"group_id": "g"})


async def test_calls_go_on_after_a_restart_has_closed_all_connections(
    broker: Broker, raw: Any
) -> None:
    await asyncio.gather(*(broker.read_judged("0", block_s=0.1) for _ in range(4)))
    await broker.send(group_task("a"))
    assert await raw.client_kill_filter(_type="normal", skipme=True) >= 4
    with contextlib.suppress(UnavailableError):
        await broker.ping()
    with contextlib.suppress(UnavailableError):
        await broker.send(group_task("b"))
    await asyncio.gather(*(broker.read_judged("0", block_s=0.1) for _ in range(4)))
    await broker.send(group_task("c"))


async def test_more_readers_and_commands_than_connections_wait_for_one_and_are_all_answered(
    broker: Broker, raw: Any
) -> None:
    reading = [broker.read_judged("0", block_s=0.3) for _ in range(100)]
    commands = [broker.put(f"tf:x:{number}", "1") for number in range(300)]
    busy = asyncio.gather(*reading, *commands)
    await asyncio.sleep(0.1)
    assert len(await raw.client_list(_type="normal")) < 100, "400 at once would have one each"
    assert (await busy)[100:] == [True] * 300
