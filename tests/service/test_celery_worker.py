"""A Celery worker as a process: jobs in one event loop, bytes that are no job, jobs tried again, a lost server, a soft end, a hard one."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from tests.unit.trainer.played import group_task
from triforge.broker import ROLLOUT_QUEUE, ROLLOUT_TASK, celery_app
from triforge.supervisor.layout import server_command
from triforge.supervisor.ports import free_port

WORKER = """
import asyncio, sys
import redis
from triforge.broker import ROLLOUT_QUEUE, ROLLOUT_TASK, Worker
from triforge.errors import UnavailableError
from triforge.types import (GroupTask)
from triforge.retry import RetryPolicy

store = redis.Redis.from_url(sys.argv[1])
loops, at_once = set(), 0

async def play(task):
    global at_once
    loops.add(id(asyncio.get_running_loop()))
    tries = store.incr(f"tries:{task.group_id}")
    if task.group_id == "away" and tries == 1:
        raise UnavailableError("the database does not answer", retry_after_s=0.1)
    if task.group_id == "bug":
        raise ValueError("a bug")
    at_once += 1
    store.set("most", max(at_once, int(store.get("most") or 0)))
    await asyncio.sleep(0.3)
    at_once -= 1
    store.set("loops", len(loops))
    store.sadd("done", task.group_id)

worker = Worker(sys.argv[1], ROLLOUT_QUEUE, retries=RetryPolicy(first_s=0.1))
worker.register(ROLLOUT_TASK, GroupTask, play)
worker.serve(concurrency=8)
"""

PATIENT = """
import asyncio, sys
from pathlib import Path
from triforge.broker import ROLLOUT_QUEUE, ROLLOUT_TASK, Worker
from triforge.types import GroupTask

folder = Path(sys.argv[2])

async def play(task):
    (folder / f"{task.group_id}-begun").touch()
    while task.group_id != "next" and not (folder / "go").exists():
        await asyncio.sleep(0.05)
    (folder / f"{task.group_id}-done").touch()

worker = Worker(sys.argv[1], ROLLOUT_QUEUE)
worker.register(ROLLOUT_TASK, GroupTask, play)
worker.serve(concurrency=2)
"""

PROPERTIES = {
    "delivery_tag": "t",
    "body_encoding": "base64",
    "delivery_info": {"exchange": "", "routing_key": ROLLOUT_QUEUE},
}
GARBAGE: tuple[Any, ...] = (
    None,
    [1, 2],
    {},
    {"body": "e30=", "properties": None},
    {"body": "e30=", "properties": {**PROPERTIES, "delivery_tag": 3}},
    {"body": "e30=", "properties": {**PROPERTIES, "delivery_info": {"exchange": ""}}},
    {"body": "a", "properties": PROPERTIES},
    {"body": "e30=", "headers": 3, "properties": PROPERTIES},
    {"body": "e30=", "properties": {**PROPERTIES, "body_encoding": "rot13"}},
)


def wait_for(
    condition: Callable[[], Any], process: subprocess.Popen[Any], seconds: float = 60
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the worker ended"
        assert time.monotonic() < end, "too late"
        time.sleep(0.05)


def test_a_worker_does_its_jobs_whatever_else_is_in_the_queue(redis_url: str) -> None:
    app = celery_app(redis_url)

    def send(name: str, payload: str | None = None) -> None:
        app.send_task(ROLLOUT_TASK, args=[payload or group_task(name).model_dump_json()])

    process = subprocess.Popen([sys.executable, "-c", WORKER, redis_url])
    try:
        with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
            for name in ("a", "b", "c", "d", "away", "bug"):
                send(name)
            send("", '{"group_id": "g", "colour": 1}')  # a job that cannot be read
            app.send_task("unknown", args=[1], queue=ROLLOUT_QUEUE)
            wait_for(lambda: raw.scard("done") == 5, process)
            assert int(raw.get("most") or 0) >= 4
            assert raw.get("loops") == "1"
            assert (raw.get("tries:away"), raw.get("tries:bug")) == ("2", "1")
            bad = [b"", b"\xff\xfe\x00", b"{", *(json.dumps(message) for message in GARBAGE)]
            for number, text in enumerate(bad):
                raw.rpush(ROLLOUT_QUEUE, text)
                send(f"after-{number}")
            wait_for(lambda: raw.scard("done") == 5 + len(bad), process)
            wait_for(lambda: raw.hlen("unacked") == 0, process)
            assert raw.llen(ROLLOUT_QUEUE) == 0
            process.terminate()
            assert process.wait(30) == 0
    finally:
        process.kill()
        app.close()


def start_server(port: int, folder: Path) -> subprocess.Popen[bytes]:
    server = subprocess.Popen(server_command(port, folder), stdout=subprocess.DEVNULL)
    with redis.Redis(port=port) as client:

        def answers() -> bool:
            with contextlib.suppress(redis.ConnectionError):
                return bool(client.ping())
            return False

        wait_for(answers, server)
    return server


def test_a_worker_with_a_job_in_work_waits_for_a_server_that_was_killed(tmp_path: Path) -> None:
    port = free_port()
    url, log = f"redis://127.0.0.1:{port}/0", tmp_path / "log"
    app = celery_app(url)
    server = start_server(port, tmp_path)
    with log.open("wb") as out:
        command = [sys.executable, "-c", PATIENT, url, str(tmp_path)]
        process = subprocess.Popen(command, stderr=out)
    try:
        app.send_task(ROLLOUT_TASK, args=[group_task("long").model_dump_json()])
        wait_for((tmp_path / "long-begun").exists, process)
        server.kill()
        server.wait()
        wait_for(lambda: re.search("Cannot connect|Unrecoverable", log.read_text()), process)
        assert "Unrecoverable" not in log.read_text()
        server = start_server(port, tmp_path)
        app.send_task(ROLLOUT_TASK, args=[group_task("next").model_dump_json()])
        wait_for((tmp_path / "next-done").exists, process)
        (tmp_path / "go").touch()
        wait_for((tmp_path / "long-done").exists, process)
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        app.close()
        server.kill()
        server.wait()


def test_a_killed_worker_leaves_its_deliveries_and_nothing_else(
    redis_url: str, tmp_path: Path
) -> None:
    app = celery_app(redis_url)
    command = [sys.executable, "-c", PATIENT, redis_url, str(tmp_path)]
    try:
        with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
            for name in ("a", "b"):
                app.send_task(ROLLOUT_TASK, args=[group_task(name).model_dump_json()])
                process = subprocess.Popen(command)
                wait_for((tmp_path / f"{name}-begun").exists, process)
                process.kill()
                process.wait()
            own = {"unacked", "unacked_index", "unacked_mutex"}
            queues = {
                f"_kombu.{table}.{ROLLOUT_QUEUE}" for table in ("binding", "binding_permanent")
            }
            assert set(raw.keys()) - own == queues
            assert {raw.scard(name) for name in queues} == {1}
            assert (raw.hlen("unacked"), raw.zcard("unacked_index")) == (2, 2)

            # As if the visibility timeout were over: any worker takes them and is done with them.
            raw.zadd("unacked_index", dict.fromkeys(raw.zrange("unacked_index", 0, -1), 0.0))
            (tmp_path / "go").touch()
            process = subprocess.Popen(command)
            try:
                done = ["a-done", "b-done"]
                wait_for(lambda: all((tmp_path / name).exists() for name in done), process)
                wait_for(lambda: not raw.hlen("unacked"), process)
            finally:
                process.kill()
                process.wait()
            assert not raw.zcard("unacked_index")
    finally:
        app.close()
