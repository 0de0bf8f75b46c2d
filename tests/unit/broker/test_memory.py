"""The in-memory broker's workers."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.trainer.played import group_task
from triforge.broker import JUDGE_QUEUE, JUDGE_TASK, Job, MemoryBroker
from triforge.types import GroupTask


async def test_job_without_a_worker_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def work(_: GroupTask) -> None: ...

    broker = MemoryBroker()
    broker.serve(JUDGE_QUEUE, Job("other", GroupTask, work), concurrency=1)
    await broker.submit(JUDGE_TASK, group_task().model_dump_json())
    for _ in range(3):
        await asyncio.sleep(0)
    assert JUDGE_TASK in caplog.text
    await broker.close()
