"""The in-memory broker's workers."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.trainer.played import group_task
from triforge.broker import JUDGE_QUEUE, JUDGE_TASK, UNIT_TEST_TASK, Job, MemoryBroker
from triforge.types import GroupTask


async def test_a_job_without_a_worker_is_dropped_and_the_queue_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, done = MemoryBroker(), asyncio.Event()

    async def work(_: GroupTask) -> None:
        done.set()

    broker.serve(JUDGE_QUEUE, Job(JUDGE_TASK, GroupTask, work), concurrency=1)
    for task in (UNIT_TEST_TASK, JUDGE_TASK):
        await broker.submit(task, group_task().model_dump_json())
    await asyncio.wait_for(done.wait(), 10)
    assert UNIT_TEST_TASK in caplog.text
    await broker.close()
