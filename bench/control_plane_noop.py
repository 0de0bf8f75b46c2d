"""What the queue alone can bear: jobs that do nothing, as many and of the same shape as the loop sends.

One job a group; whoever gets it sends one a trajectory; whoever gets those counts. The Celery app, its options, the
number of jobs at a time and the size of the messages are those of the loop.

    celery   sent by Celery's own client, worked on in Celery's own pool of threads: the queue as it comes
    loop     sent by `triforge.broker.Wire`, worked on in `triforge.broker.LoopPool`: the queue as the loop uses it

Run (by bench.control_plane): python -m bench.control_plane_noop celery | loop rollout | judge REDIS_URL
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import redis.asyncio as aioredis

from bench.control_plane_stack import cpu_s, free_port
from triforge.broker import (
    JUDGE_QUEUE,
    JUDGE_TASK,
    ROLLOUT_QUEUE,
    ROLLOUT_TASK,
    Broker,
    LoopThread,
    celery_app,
    start_worker,
)
from triforge.broker.convoy import Convoy
from triforge.jobs import register
from triforge.supervisor.broker import server_command
from triforge.types import GroupTask, JudgeTask, Sampling

Send = Callable[[Sequence[GroupTask]], None]

COUNTER = "noop"
ROLLOUTS = 8  # trajectories of a group, as in the loop
QUEUES = {"rollout": ROLLOUT_QUEUE, "judge": JUDGE_QUEUE}
AT_A_TIME = {"rollout": 32, "judge": 64}  # jobs, as the workers of the loop
_LOOK_S, _LONGEST_S = 0.01, 120.0


def group_task(name: str, rollouts: int) -> GroupTask:
    """A group's job of the usual size."""
    return GroupTask(
        group_id=name, run_id="run-0123456789", step=1, task_id="t-0123456789ab-t000001", purpose="train",
        rollouts=rollouts, votes=1, seed=1, sampling=Sampling(max_new_tokens=16), max_steps=1, deadline_s=300.0,
    )  # fmt: skip


def judge_task(group: GroupTask, index: int) -> JudgeTask:
    """A trajectory's job of the usual size."""
    return JudgeTask(
        trajectory_id=f"{group.group_id}-{index:02d}", group_id=group.group_id, run_id=group.run_id,
        votes=1, seed=index, sampling=Sampling(max_new_tokens=16), deadline_s=300.0,
    )  # fmt: skip


def celery_worker(queue: str, url: str) -> None:
    """Serve one queue as Celery does."""
    app = celery_app(url)
    client = redis.Redis.from_url(url)

    @app.task(name=ROLLOUT_TASK)
    def play(payload: str) -> None:
        group = GroupTask.model_validate_json(payload)
        for index in range(group.rollouts):
            app.send_task(JUDGE_TASK, args=[judge_task(group, index).model_dump_json()])

    @app.task(name=JUDGE_TASK)
    def judge(_payload: str) -> None:
        client.incr(COUNTER)

    start_worker(app, QUEUES[queue], concurrency=AT_A_TIME[queue], threads=True)


def loop_worker(queue: str, url: str) -> None:
    """Serve one queue as the loop does."""
    loop = LoopThread()

    async def build() -> tuple[Broker, Convoy]:
        return Broker(url), Convoy(aioredis.from_url(url), _simply)

    broker, convoy = loop.run(build())

    async def play(group: GroupTask) -> None:
        sent = (broker.send_judge(judge_task(group, index)) for index in range(group.rollouts))
        await asyncio.gather(*sent)

    async def judge(_: JudgeTask) -> None:
        await convoy.execute("INCR", COUNTER)

    app = celery_app(url)
    register(app, ROLLOUT_TASK, GroupTask, play, loop)
    register(app, JUDGE_TASK, JudgeTask, judge, loop)
    start_worker(app, QUEUES[queue], concurrency=AT_A_TIME[queue])


async def _simply(work: Awaitable[Any]) -> Any:
    return await work


@contextlib.contextmanager
def _celery_sender(url: str) -> Iterator[Send]:
    app = celery_app(url)

    def send(tasks: Sequence[GroupTask]) -> None:
        for task in tasks:
            app.send_task(ROLLOUT_TASK, args=[task.model_dump_json()])

    yield send
    app.close()


@contextlib.contextmanager
def _wire_sender(url: str) -> Iterator[Send]:
    loop = LoopThread()

    async def build() -> Broker:
        return Broker(url)

    broker = loop.run(build())

    async def send_all(tasks: Sequence[GroupTask]) -> None:
        await asyncio.gather(*(broker.send_rollout(task) for task in tasks))

    yield lambda tasks: loop.run(send_all(tasks))
    loop.run(broker.close())


WORKERS = {"celery": celery_worker, "loop": loop_worker}
_SENDERS = {"celery": _celery_sender, "loop": _wire_sender}


@dataclass(frozen=True, slots=True)
class Alone:
    """A queue of its own with two workers that do nothing. They wait, at no cost to speak of, while nothing is sent.

    Attributes:
        pids: the server, the workers and whoever sends.
        send: puts jobs of groups into it.
        client: counts what has come through.
    """

    pids: Mapping[str, int]
    send: Send
    client: Any

    def through(self, groups: int, rollouts: int, name: str = "train") -> dict[str, Any]:
        """Trajectories and jobs a second of so many groups that are sent at once."""
        before = {process: cpu_s(pid) for process, pid in self.pids.items()}
        seconds = self._seconds(name, groups, rollouts)
        used = {process: cpu_s(pid) - before[process] for process, pid in self.pids.items()}
        trajectories = groups * rollouts
        return {
            "trajectories_s": trajectories / seconds,
            "jobs_s": (groups + trajectories) / seconds,
            "jobs_per_trajectory": (groups + trajectories) / trajectories,
            "seconds": seconds,
            "cpu_ms": {process: one / trajectories * 1e3 for process, one in used.items()},
            "cpu_ms_all": sum(used.values()) / trajectories * 1e3,
            "cores": sum(used.values()) / seconds,
        }

    def _seconds(self, name: str, groups: int, rollouts: int) -> float:
        """Send groups, and wait until all of their trajectories are counted."""
        wanted = int(self.client.get(COUNTER) or 0) + groups * rollouts
        started = time.perf_counter()
        names = (f"run-0123456789-00001-{name}-{number:04d}" for number in range(groups))
        self.send([group_task(name, rollouts) for name in names])
        while int(self.client.get(COUNTER) or 0) < wanted:
            if time.perf_counter() > started + _LONGEST_S:
                raise SystemExit(f"the queue alone did not get through in {_LONGEST_S:.0f} s")
            time.sleep(_LOOK_S)
        return time.perf_counter() - started


@contextlib.contextmanager
def queue_alone(folder: Path, way: str) -> Iterator[Alone]:
    """Start a queue and its workers, in one of the ways of `WORKERS`; both workers have taken jobs when it is there."""
    folder.mkdir(parents=True)
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    module = [sys.executable, "-m", "bench.control_plane_noop"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    client = redis.Redis.from_url(url, retry_on_error=[redis.ConnectionError], retry=_patience())
    commands = {f"{name}-worker": [*module, way, name, url] for name in QUEUES}
    started: dict[str, subprocess.Popen[bytes]] = {}
    with (folder / "log").open("wb") as log:
        try:
            for name, command in {"queue": server_command(port, folder), **commands}.items():
                started[name] = subprocess.Popen(command, stdout=log, stderr=log, env=env)
            with _SENDERS[way](url) as send:
                pids = {name: child.pid for name, child in started.items()}
                alone = Alone({**pids, "bench": os.getpid()}, send, client)
                # The first ones wait until both workers are there and have their connections.
                alone.through(8, ROLLOUTS, "warm")
                yield alone
        finally:
            client.close()
            for child in reversed(started.values()):
                child.terminate()
                child.wait(30)


def _patience() -> redis.retry.Retry:
    return redis.retry.Retry(redis.backoff.ConstantBackoff(0.2), 50)


if __name__ == "__main__":
    WORKERS[sys.argv[1]](sys.argv[2], sys.argv[3])
