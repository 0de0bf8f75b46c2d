"""A worker whose parent is killed gets SIGTERM from the kernel, and no process is left that would wait for it or end it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import redis

from tests.service.test_rollout_worker import group
from triforge.broker import ROLLOUT_QUEUE, Broker
from triforge.supervisor.process import Process, ProcessSpec

_WORKER = """
import asyncio, sys
from triforge.types import (GroupTask)
from triforge.broker import ROLLOUT_QUEUE, ROLLOUT_TASK, Worker

async def play(task):
    await asyncio.Event().wait()  # as if what it waits for had died, too

worker = Worker(sys.argv[1], ROLLOUT_QUEUE)
worker.app.conf.worker_soft_shutdown_timeout = 0.2
worker.register(ROLLOUT_TASK, GroupTask, play)
worker.serve(concurrency=2)
"""

_PARENT = """
import sys, time
from pathlib import Path
from triforge.supervisor.process import Process, ProcessSpec

worker = Process(ProcessSpec(name="worker", command=(sys.executable, *sys.argv[2:]), env={}), Path(sys.argv[1]) / "worker.log")
worker.start()
(Path(sys.argv[1]) / "aside").write_text(str(worker.pid))
(Path(sys.argv[1]) / "aside").rename(Path(sys.argv[1]) / "pid")
time.sleep(600)
"""


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(60):
        while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.05)


async def test_a_worker_whose_parent_was_killed_ends_although_its_job_does_not(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", _PARENT, str(tmp_path), "-c", _WORKER, redis_url)
    parent = Process(ProcessSpec(name="parent", command=command, env={}), tmp_path / "parent.log")
    parent.start()
    with redis.Redis.from_url(redis_url) as client:
        try:
            await broker.send(group())
            async with asyncio.timeout(60):
                while not client.hlen("unacked"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            pid = int((tmp_path / "pid").read_text())
            assert parent.pid is not None
            os.kill(parent.pid, signal.SIGKILL)
            await until_gone(pid)
        finally:
            await parent.stop(0.0)
        assert "the parent is gone" in (tmp_path / "worker.log").read_text()
        assert client.hlen("unacked") + await broker.depth(ROLLOUT_QUEUE) == 1
