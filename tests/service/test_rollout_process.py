"""The rollout worker as a process of its own: queue, database, policy service and Valkey are real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.store import PoolStore
from tests.sections import flat_group
from triforge.broker import Broker
from triforge.environments.registry import family
from triforge.store.database import open_database
from triforge.types import GenerateSpec, PoolRequest, Sampling


async def test_a_real_worker_process_plays_a_household_group_from_the_queue(
    broker: Broker, redis_url: str, policy_url: Callable[..., str], tmp_path: Path
) -> None:
    database_url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    database = open_database(database_url)
    request = PoolRequest(name="p", environment="household", generate=GenerateSpec(count=1))
    pool, _ = PoolMaker(database, family).create(request, ())
    (task,) = PoolStore(database).tasks(pool.id).items
    job = flat_group(
        group_id="g", run_id="r", step=0, task_id=task.id, purpose="train", rollouts=3, seed=1,
        sampling=Sampling(max_new_tokens=4), max_steps=2, deadline_s=20.0, options={"wording": "terse"},
    )  # fmt: skip
    environment = {
        **os.environ,
        "TRIFORGE_REDIS_URL": redis_url,
        "TRIFORGE_DATABASE_URL": database_url,
        "TRIFORGE_POLICY_MODEL_URL": policy_url("open window"),
    }
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "services.env_adapter", "rollout-worker"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        await broker.send(job)
        await broker.send(job)
        async with asyncio.timeout(60):
            while not await broker.read_judged("0", block_s=0.1):
                assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        output, _ = await asyncio.to_thread(process.communicate, timeout=30)
        assert process.returncode == 0, output.decode()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        database.close()
    played = await broker.group("g")
    assert played is not None
    assert [t.outcome.value for t in played.trajectories] == [-1, -1, -1]
    assert {step.next_observation for t in played.trajectories for step in t.steps} == {"fail"}
    assert len(await broker.read_judged("0", block_s=0.1)) == 1
