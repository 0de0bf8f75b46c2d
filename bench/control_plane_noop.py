"""What the queue alone can bear: errands that do nothing, as many and of the same shape as the ring sends.

One errand a group; whoever gets it sends one a trajectory; whoever gets those counts. The Celery app, its options, the
number of threads and the size of the messages are those of the ring.

Run (by bench.control_plane): python -m bench.control_plane_noop rollout | judge REDIS_URL
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from bench.control_plane_stack import cpu_s, free_port
from triforge.messages import GroupTask, JudgeTask, Sampling
from triforge.queues import (
    JUDGE_QUEUE,
    JUDGE_TASK,
    ROLLOUT_QUEUE,
    ROLLOUT_TASK,
    celery_app,
    start_worker,
)
from triforge.supervisor.broker import server_command

COUNTER = "noop"
THREADS = {"rollout": 32, "judge": 64}  # as the workers of the ring have
_LOOK_S, _LONGEST_S = 0.01, 120.0


def group_task(name: str, rollouts: int) -> GroupTask:
    """A group's errand of the usual size."""
    return GroupTask(
        group_id=name, run_id="run-0123456789", step=1, task_id="t-0123456789ab-t000001", purpose="train",
        rollouts=rollouts, votes=1, seed=1, sampling=Sampling(max_new_tokens=16), max_steps=1, deadline_s=300.0,
    )  # fmt: skip


def judge_task(group: GroupTask, index: int) -> JudgeTask:
    """A trajectory's errand of the usual size."""
    return JudgeTask(
        trajectory_id=f"{group.group_id}-{index:02d}", group_id=group.group_id, run_id=group.run_id,
        votes=1, seed=index, sampling=Sampling(max_new_tokens=16), deadline_s=300.0,
    )  # fmt: skip


def worker(queue: str, url: str) -> None:
    """Serve one queue."""
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

    names = {"rollout": ROLLOUT_QUEUE, "judge": JUDGE_QUEUE}
    start_worker(app, names[queue], concurrency=THREADS[queue], threads=True)


@contextlib.contextmanager
def _queue(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """The address of a broker with two workers that do nothing, and all process ids."""
    folder.mkdir(parents=True)
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    module = [sys.executable, "-m", "bench.control_plane_noop"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        started = [subprocess.Popen(server_command(port, folder), stdout=log, stderr=log)]
        try:
            started += [
                subprocess.Popen([*module, name, url], stdout=log, stderr=log, env=env)
                for name in THREADS
            ]
            yield url, [os.getpid(), *(child.pid for child in started)]
        finally:
            for child in reversed(started):
                child.terminate()
                child.wait(30)


def ceiling(folder: Path, groups: int, rollouts: int) -> dict[str, float]:
    """Trajectories and errands a second through a queue whose errands do nothing."""
    with _queue(folder) as (url, pids):
        app = celery_app(url)
        client = redis.Redis.from_url(
            url, retry_on_error=[redis.ConnectionError], retry=_patience()
        )
        try:
            # The first ones wait until both workers are there and have their connections.
            _through(app, client, "warm", 8, rollouts)
            before = sum(map(cpu_s, pids))
            seconds = _through(app, client, "train", groups, rollouts)
            used = sum(map(cpu_s, pids)) - before
        finally:
            app.close()
            client.close()
    trajectories = groups * rollouts
    return {
        "trajectories_s": trajectories / seconds,
        "errands_s": (groups + trajectories) / seconds,
        "errands_per_trajectory": (groups + trajectories) / trajectories,
        "seconds": seconds,
        "cpu_ms_per_trajectory": used / trajectories * 1e3,
    }


def _through(app: Any, client: Any, name: str, groups: int, rollouts: int) -> float:
    """Send groups, and wait until all of their trajectories are counted; returns seconds."""
    wanted = int(client.get(COUNTER) or 0) + groups * rollouts
    started = time.perf_counter()
    for number in range(groups):
        task = group_task(f"run-0123456789-00001-{name}-{number:04d}", rollouts)
        app.send_task(ROLLOUT_TASK, args=[task.model_dump_json()])
    while int(client.get(COUNTER) or 0) < wanted:
        if time.perf_counter() > started + _LONGEST_S:
            raise SystemExit(f"the queue alone did not get through in {_LONGEST_S:.0f} s")
        time.sleep(_LOOK_S)
    return time.perf_counter() - started


def _patience() -> redis.retry.Retry:
    return redis.retry.Retry(redis.backoff.ConstantBackoff(0.2), 50)


if __name__ == "__main__":
    worker(sys.argv[1], sys.argv[2])
