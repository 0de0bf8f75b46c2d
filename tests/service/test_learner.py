"""The learner against a real Valkey: what it announces, and what it does not do twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as aioredis

from services.trainer.learner.batch_trainer import BatchTrainer
from tests.service.learners import BASE, a_batch, answers, learning
from triforge.broker import Broker
from triforge.store.artifacts import ArtifactStore
from triforge.store.manifests import write_manifest
from triforge.telemetry import tracing


async def test_what_a_learner_does_lies_in_the_trace_that_its_batch_was_sent_in(
    broker: Broker, store: ArtifactStore, model: Path, spans: Any
):
    async with learning(broker, store):
        with tracing.span("train"):
            await broker.announce(a_batch(store, model, 1))
        await broker.announce(a_batch(store, model, 2))
        await answers(broker, 2)
    found = spans.get_finished_spans()
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
    broker: Broker, store: ArtifactStore, model: Path
):
    batch = a_batch(store, model)
    async with learning(broker, store):
        await broker.announce(batch)
        await broker.announce(batch)
        first, again = await answers(broker, 2)
    assert first == again
    # another process, which has never seen the batch
    async with learning(broker, store):
        await broker.announce(batch)
        assert (await answers(broker, 3))[2] == first


async def test_a_batch_that_the_run_has_left_behind_is_passed_over(
    broker: Broker, store: ArtifactStore, model: Path
):
    async with learning(broker, store):
        for step in (1, 2, 3, 1, 4):  # version 3 is pruned when 5 is published
            await broker.announce(a_batch(store, model, step, keep=2))
        found = await answers(broker, 4)
    assert [ready.version for ready in found] == [3, 4, 5, 6]


async def test_a_second_process_goes_on_as_the_first_one_would_have(
    broker: Broker, store: ArtifactStore, model: Path, tmp_path: Path
):
    other = ArtifactStore(str(tmp_path / "other"))
    async with learning(broker, store):
        for step in (1, 2):
            await broker.announce(a_batch(store, model, step))
        straight = (await answers(broker, 2))[1]
    after = await broker.last_id("tf:weights")
    start = await broker.last_id("tf:batches:policy")
    other.write("checkpoints/cursor-policy.json", f'{{"after": "{start}"}}'.encode())
    async with learning(broker, other):
        await broker.announce(a_batch(other, model, 1))
        resumed = (await answers(broker, 1, after))[0]
    after = await broker.last_id("tf:weights")
    async with learning(broker, other):
        await broker.announce(a_batch(other, model, 2))
        resumed = (await answers(broker, 1, after))[0]
    assert resumed.version == straight.version
    files = [Path(r.uri) / "model.safetensors" for r in (straight, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()


async def test_a_failure_is_announced_with_its_reason_and_the_learner_serves_the_next_run(
    broker: Broker, store: ArtifactStore, model: Path
):
    async with learning(broker, store):
        await broker.announce(a_batch(store, model / "nowhere"))
        await broker.announce(a_batch(store, model, learner={"max_tokens": 2}))
        await broker.announce(a_batch(store, model, job="critic"))
        await broker.announce(a_batch(store, model, run_id="next"))
        found = await answers(broker, 4)
    kinds = [ready.error.kind if ready.error else "" for ready in found]
    assert kinds == ["weights", "trainer", "config", ""]
    assert found[0].error is not None
    assert "nowhere: no config.json" in found[0].error.detail
    assert (found[0].run_id, found[0].step, found[0].version) == ("run", 1, BASE)


async def test_a_failed_batch_is_tried_again_when_it_is_sent_again(
    broker: Broker, store: ArtifactStore, model: Path
):
    batch = a_batch(store, model)
    rows = store.read(batch.uri)
    store.write(batch.uri, rows[:100])
    async with learning(broker, store):
        await broker.announce(batch)
        failed = (await answers(broker, 1))[0]
        store.write(batch.uri, rows)
        await broker.announce(batch)
        done = (await answers(broker, 2))[1]
    assert failed.error is not None
    assert failed.error.kind == "storage"
    assert done.error is None
    assert done.version == BASE + 1


WEIGHTS = "model.safetensors"


def _flipped(folder: Path) -> None:
    path = folder / WEIGHTS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _file(name: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something else in the place of a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        change(folder / name)

    return damage


def _manifest(old: bytes, new: bytes) -> Callable[[Path], object]:
    """Change some bytes of the manifest."""

    def damage(folder: Path) -> None:
        data = (folder / "manifest.json").read_bytes()
        assert old in data
        (folder / "manifest.json").write_bytes(data.replace(old, new, 1))

    return damage


def _instead(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something else in the place of the folder."""

    def damage(folder: Path) -> None:
        shutil.rmtree(folder)
        change(folder)

    return damage


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped byte": _flipped,
    "truncated": lambda folder: os.truncate(folder / WEIGHTS, 100),
    "replaced": lambda folder: (folder / WEIGHTS).write_bytes(b"x"),
    "no weights": _file(WEIGHTS, lambda path: None),
    "a link to nowhere": _file(WEIGHTS, lambda path: path.symlink_to("nowhere")),
    "a link to another file": _file(WEIGHTS, lambda path: path.symlink_to("config.json")),
    "a pipe": _file(WEIGHTS, os.mkfifo),
    "a folder for a file": _file(WEIGHTS, Path.mkdir),
    "no manifest": _file("manifest.json", lambda path: None),
    "a pipe for the manifest": _file("manifest.json", os.mkfifo),
    "half a manifest": lambda folder: os.truncate(folder / "manifest.json", 100),
    "a manifest of another step": _manifest(b'"step": 1', b'"step": 3'),
    "a manifest without its step": _manifest(b'"step"', b'"stfp"'),
    "a manifest without measures": _manifest(b'"metrics"', b'"metrias"'),
    "a measure that is no number": _manifest(b'"rows": ', b'"rows": "x", "more": '),
    "of another run": lambda folder: write_manifest(folder, {"run_id": "other"}),
    "one file more": lambda folder: (folder / "more.safetensors").write_bytes(b"x"),
    "a file for the folder": _instead(Path.touch),
    "a pipe for the folder": _instead(os.mkfifo),
    "an empty folder": _instead(Path.mkdir),
    "a link to nowhere for the folder": _instead(lambda path: path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_version_damaged_before_its_commit_is_set_aside_and_written_again(
    store: ArtifactStore, model: Path, damage: Callable[[Path], object]
):
    batch, trainer = a_batch(store, model), BatchTrainer(store)
    first = trainer.train(batch)
    assert first is not None
    (checkpoint,) = store.local_path("checkpoints/run/policy").glob("v*")
    _flipped_state(checkpoint)
    folder = Path(first.uri)
    whole = (folder / WEIGHTS).read_bytes()
    damage(folder)
    for learner in (trainer, BatchTrainer(store)):
        again = learner.train(batch)
        assert again is not None
        assert again.error is None
        assert (again.version, again.uri) == (first.version, first.uri)
        assert again.metrics["replaced"] == 2.0, "the weights and their checkpoint"
    assert (folder / WEIGHTS).read_bytes() == whole
    assert {p.name for p in folder.parent.iterdir()} == {folder.name, f"unusable-{folder.name}"}
    following = trainer.train(a_batch(store, model, 2))
    assert following is not None
    assert "passed_over" not in following.metrics, (
        "the run goes on from the version that was repeated"
    )


def _flipped_state(checkpoint: Path) -> None:
    data = bytearray((checkpoint / "optimizer.safetensors").read_bytes())
    data[-1] ^= 1
    (checkpoint / "optimizer.safetensors").write_bytes(data)


def test_what_was_set_aside_goes_with_the_versions_of_its_age(store: ArtifactStore, model: Path):
    trainer = BatchTrainer(store)
    for step in range(1, 5):
        batch = a_batch(store, model, step, keep=2)
        ready = trainer.train(batch)
        assert ready is not None
        if step == 1:
            (Path(ready.uri) / "manifest.json").unlink()
            ready = trainer.train(batch)
    assert ready is not None
    parent = Path(ready.uri).parent
    assert {p.name for p in parent.iterdir()} == {"v000005", "v000006"}


async def test_an_unreadable_batch_costs_no_other_one(
    broker: Broker, redis_url: str, store: ArtifactStore, model: Path
):
    async with aioredis.from_url(redis_url) as client:
        await client.xadd("tf:batches:policy", {"json": '{"batch_id": 7}'})
        await broker.announce(a_batch(store, model))
        await client.xadd("tf:batches:policy", {"other": "x"})
    async with learning(broker, store):
        assert (await answers(broker, 1))[0].version == 3


async def test_a_run_that_asks_for_an_adapter_gets_versions_that_are_adapters_also_after_a_restart(
    broker: Broker, store: ArtifactStore, model: Path
):
    # rows of so few tokens give q_proj no gradient but rounding, which some CPUs round to zero
    options = {"learning_rate": 1e-2, "lora_rank": 2, "lora_targets": ["v_proj"]}
    found = []
    for step in (1, 2):
        async with learning(broker, store):  # a process of its own for each step
            await broker.announce(a_batch(store, model, step, learner=options))
            found = await answers(broker, step)
    assert [(ready.version, ready.error) for ready in found] == [(3, None), (4, None)]
    files = [Path(ready.uri) / "adapter_model.safetensors" for ready in found]
    assert files[0].read_bytes() != files[1].read_bytes()
    async with learning(broker, store):
        await broker.announce(a_batch(store, model, 3))
        error = (await answers(broker, 3))[2].error
    assert error is not None
    assert "given lora_rank 0, but" in error.detail
