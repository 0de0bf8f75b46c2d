"""One trajectory is one trace: queue, workers, policy service and engine are processes of their own, the collector is a server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from demo.models.tiny_models import build_tiny_model
from environments.household.wording import vocabulary
from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.store import PoolStore
from tests.sections import flat_group
from tests.service.trace_collector import Seen, collector
from triforge.broker import Broker
from triforge.clients.transport import get_json, http_client
from triforge.environments.registry import family
from triforge.store.database import open_database
from triforge.supervisor.ports import free_port
from triforge.telemetry.tracing import trace_id_of
from triforge.types import GenerateSpec, GroupTask, PoolRequest, Sampling

ROOT = Path(__file__).parents[2]
STEPS = 2


class Processes:
    """Programs of triforge with one environment, ended by SIGTERM as an operator would."""

    def __init__(self, **variables: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRIFORGE_", "OTEL_"))}
        self._env = {**kept, **variables, "OMP_NUM_THREADS": "1", "OTEL_BSP_SCHEDULE_DELAY": "200"}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str) -> None:
        full = [sys.executable, "-m", *command]
        self._running.append(
            subprocess.Popen(full, cwd=ROOT, env=self._env, stderr=subprocess.PIPE)
        )

    def check(self) -> None:
        for process in self._running:
            if process.poll() is not None:
                pytest.fail((process.communicate()[1] or b"").decode()[-2000:])

    def stop(self) -> str:
        """End them all; returns what they have logged. What is recorded is sent by then."""
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        return "".join(process.communicate(timeout=40)[1].decode() for process in self._running)

    def kill(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.communicate()


def job(name: str, task_id: str, rollouts: int) -> GroupTask:
    return flat_group(
        group_id=name, run_id="run-1", step=4, task_id=task_id, purpose="train", rollouts=rollouts, seed=1, votes=2,
        sampling=Sampling(max_new_tokens=2), judge_sampling=Sampling(max_new_tokens=2), max_steps=STEPS,
        deadline_s=60.0, options={"wording": "terse"}, judge_prompt="terse",
    )  # fmt: skip


@pytest.mark.timeout(300)  # four processes begin; seconds on a quiet machine
async def test_every_span_of_a_trajectory_has_its_trace_and_the_right_parent(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    model = build_tiny_model(tmp_path / "model", [*vocabulary(), r"\boxed{1}", r"\boxed{-1}"])
    database_url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    database = open_database(database_url)
    request = PoolRequest(name="p", environment="household", generate=GenerateSpec(count=1))
    pool, _ = PoolMaker(database, family).create(request, ())
    (task,) = PoolStore(database).tasks(pool.id).items
    database.close()
    engine, service = free_port(), free_port()
    with collector() as (address, seen):
        processes = Processes(
            TRIFORGE_OTLP_ENDPOINT=address,
            TRIFORGE_LOG="json",
            TRIFORGE_REDIS_URL=redis_url,
            TRIFORGE_DATABASE_URL=database_url,
            TRIFORGE_ARTIFACTS_URL=str(tmp_path / "artifacts"),
            TRIFORGE_ENGINES=f"http://127.0.0.1:{engine}",
            TRIFORGE_MODEL=str(model),
            TRIFORGE_POLICY_MODEL_URL=f"http://127.0.0.1:{service}",
            TRIFORGE_REWARD_MODEL_URL=f"http://127.0.0.1:{service}",
        )
        try:
            given = ("--model-path", str(model), "--port", str(engine), "--weight-version", "0")
            processes.start("services.local_engine", *given)
            processes.start("services.policy")
            processes.start("services.env_adapter", "rollout-worker")
            processes.start("services.reward", "judge-worker")
            async with http_client(f"http://127.0.0.1:{service}") as client:
                await get_json(client, "/readyz", deadline_s=120)
            groups = [job("solo", task.id, 1), job("trio", task.id, 3)]
            for group in groups:
                await broker.send(group)
            async with asyncio.timeout(120):
                while len(await broker.read_judged("0", block_s=0.2)) < len(groups):
                    processes.check()
            await asyncio.to_thread(processes.stop)
        finally:
            processes.kill()
    for group in groups:
        for index in range(group.rollouts):
            expect_whole(f"{group.group_id}-{index:02d}", seen)


def expect_whole(name: str, seen: Sequence[Seen]) -> None:
    """The trace of a trajectory: played and judged, down to the engine."""
    trace = f"{trace_id_of(name):032x}"
    own = [span for span in seen if span.trace == trace]
    every = {span.id: span for span in seen}
    roots = [span for span in own if not span.parent]
    assert [span.name for span in roots] == ["trajectory"]
    assert all(every[span.parent].trace == trace for span in own if span.parent), (
        "a parent elsewhere"
    )
    (link,) = roots[0].links
    assert every[link].name == "rollout job"
    assert {
        span["triforge.trajectory"] for span in own if span.service != "triforge-local-engine"
    } == {name}

    def below(parent: Seen, span_name: str, among: Sequence[Seen] = own) -> list[Seen]:
        return [span for span in among if span.parent == parent.id and span.name == span_name]

    (episode,) = below(roots[0], "episode")
    (judge,) = below(roots[0], "judge job")
    assert judge.service == "triforge-reward"
    turns, votes = below(episode, "generate"), below(judge, "generate")
    assert (len(turns), len(votes)) == (STEPS, 1)
    assert {turn.service for turn in turns} == {"triforge-env-adapter"}
    for call in (*turns, *votes):
        asked = [call]
        if call.links:  # several trajectories in one batch: a trace of its own, linked both ways
            (batch,) = (every[link] for link in call.links)
            assert call.id in batch.links
            assert batch.trace != trace
            assert len({every[link].trace for link in batch.links}) == len(batch.links) > 1
            asked = [batch]
        for wanted, service in (
            ("POST /v1/generate", "triforge-policy"),
            ("engine /generate", "triforge-policy"),
            ("POST /generate", "triforge-local-engine"),
        ):
            asked = [span for above in asked for span in below(above, wanted, seen)]
            assert asked, f"{call.name} of {name} has no {wanted}"
            assert {span.service for span in asked} == {service}
            assert {span.trace for span in asked} == {(batch if call.links else call).trace}
