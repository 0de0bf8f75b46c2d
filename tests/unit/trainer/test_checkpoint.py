from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.lora import LoraShape
from services.trainer.learner.weights.tensors import copy_companions
from tests.unit.trainer.conftest import VERSION, MakeBatch, sampled_rows
from triforge.cli.models import save_model
from triforge.errors import StorageError, WeightsError
from triforge.rendering import Renderer
from triforge.store.artifacts import ArtifactStore
from triforge.store.manifests import load_manifest, read_manifest, verify_manifest
from triforge.store.rows import write_rows
from triforge.store.weight_folders import copy_version, versions
from triforge.types import TrainBatch, TrainRow, WeightVersion

ROOT = Path(__file__).parents[3]


def state_of(checkpoints: CheckpointStore, version: int) -> Path:
    """The folder of a version's optimiser state."""
    (found,) = checkpoints.checkpoints.glob(f"v{version:06d}-*")
    return found


def publish(
    checkpoints: CheckpointStore,
    learner: Learner,
    make_batch: MakeBatch,
    rows: list[TrainRow],
    step: int,
    keep: int = 3,
    **options: object,
):
    batch = make_batch(step=step, version=VERSION + step - 1, **options)
    ready, mine = checkpoints.publish(learner, batch, learner.train(batch, rows), keep=keep)
    assert mine
    return ready


@pytest.fixture
def one(
    checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
) -> Path:
    """The weight folder of a checkpoints with one published version."""
    return Path(publish(checkpoints, Learner.fresh(model_folder), make_batch, rows, 1).uri)


@pytest.mark.parametrize("shape", [None, LoraShape(rank=3, alpha=6)], ids=["full", "lora"])
def test_three_steps_equal_one_step_and_two_after_a_reload_bit_for_bit(
    tmp_path: Path, model_folder: Path, make_batch: MakeBatch, shape: LoraShape | None
):
    options = {"lora_rank": 3, "lora_alpha": 6} if shape else {}
    data = {step: sampled_rows(model_folder, 16, seed=step) for step in (1, 2, 3)}
    files = []
    for name, reload in (("straight", False), ("resumed", True)):
        checkpoints = CheckpointStore(ArtifactStore(str(tmp_path / name)), "run", "policy")
        learner = Learner.fresh(model_folder, shape=shape)
        for step in (1, 2, 3):
            ready = publish(checkpoints, learner, make_batch, data[step], step, **options)
            if reload and step == 1:
                learner = checkpoints.load(ready.version, model_folder, shape)
        served = "adapter_model" if shape else "model"
        state = state_of(checkpoints, 6) / "optimizer.safetensors"
        weights = checkpoints.weights / "v000006" / f"{served}.safetensors"
        files.append([weights.read_bytes(), state.read_bytes()])
    assert files[0] == files[1]


class Cadence:
    """A run whose versions have a checkpoint at some steps."""

    def __init__(self, folder: Path, make_batch: MakeBatch, store: ArtifactStore) -> None:
        self.folder, self.make_batch, self.store = folder, make_batch, store
        self.trainer = BatchTrainer(store)
        self.versions = CheckpointStore(store, "run", "policy")

    def batch(self, step: int, checkpoint: str) -> TrainBatch:
        name = f"runs/run/batches/{step}.parquet"
        uri = write_rows(self.store, name, sampled_rows(self.folder, 16, seed=step))
        version = VERSION + step - 1
        written = version if step > 1 else None
        batch = self.make_batch(
            step=step, version=version, checkpoint=checkpoint, uri=uri, keep=2, written=written
        )
        if written is None:
            return batch
        start = WeightVersion(number=version, folder=str(self.versions.weights / f"v{version:06d}"))
        return batch.model_copy(update={"start": start})

    def play(self, first: int, *checkpoints: str) -> None:
        """Train steps and delete their rows, as the loop does when a step is committed."""
        for step, checkpoint in enumerate(checkpoints, first):
            batch = self.batch(step, checkpoint)
            ready = self.trainer.train(batch)
            assert ready is not None
            assert ready.error is None
            self.store.delete(batch.uri)

    def weights(self, step: int) -> bytes:
        return (self.versions.weights / f"v{VERSION + step:06d}" / "model.safetensors").read_bytes()


@pytest.fixture
def cadence(tmp_path: Path, model_folder: Path, make_batch: MakeBatch) -> Callable[[str], Cadence]:
    """Begin runs of one model in folders of their own."""
    return lambda name: Cadence(model_folder, make_batch, ArtifactStore(str(tmp_path / name)))


@pytest.mark.parametrize("lost", [(), ("after",)], ids=["none yet", "newest"])
def test_steps_since_the_last_checkpoint_are_trained_again_bit_for_bit(
    cadence: Callable[[str], Cadence], lost: tuple[str, ...]
):
    kinds = ["none", "none", *lost, "none", "none"]
    straight, broken = cadence("straight"), cadence("broken")
    straight.play(1, *kinds)
    broken.play(1, *kinds[:-1])
    broken.trainer.close()
    broken.trainer = BatchTrainer(broken.store)  # a new process
    broken.play(len(kinds), kinds[-1])
    assert broken.weights(len(kinds)) == straight.weights(len(kinds))
    assert not broken.versions.passed_over


def test_checkpoints_follow_their_cadence_and_hold_the_weights_that_they_need(
    cadence: Callable[[str], Cadence],
):
    run = cadence("run")
    run.play(1, "none", "after", "none", "after", "none", "after", "none")
    run.trainer.close()
    assert versions(run.versions.checkpoints) == [VERSION + 4, VERSION + 6], "the last two"
    assert versions(run.versions.weights) == [VERSION + n for n in (4, 6, 7)]
    kept = {int(path.stem) for path in (run.versions.checkpoints / "since").iterdir()}
    assert kept == {VERSION + n for n in (5, 6, 7)}
    shutil.rmtree(next(run.versions.checkpoints.glob(f"v{VERSION + 6:06d}-*")))
    run.trainer = BatchTrainer(run.store)
    learner = run.versions.start_of(run.batch(8, "none"))
    assert learner.counters.updates == 4 * 7, "from step 4 on"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_run_goes_on_when_the_memory_with_its_versions_is_empty(
    dtype: str, tmp_path: Path, model_folder: Path, make_batch: MakeBatch
):
    def begin(name: str) -> Cadence:
        store = ArtifactStore(f"{tmp_path / name}#{tmp_path / name}-memory")
        return Cadence(model_folder, partial(make_batch, publish_dtype=dtype), store)

    straight, run = begin("straight"), begin("run")
    kinds = ("none", "after", "none", "after", "none")
    straight.play(1, *kinds, "before")
    run.play(1, *kinds)
    run.trainer.close()
    copies = tmp_path / "run" / "weights" / "run" / "policy"
    assert versions(copies) == [VERSION + 2, VERSION + 4], "those with a checkpoint"
    shutil.rmtree(tmp_path / "run-memory")
    run.trainer = BatchTrainer(run.store)
    run.play(6, "before")
    assert run.weights(6) == straight.weights(6)
    assert not run.versions.passed_over
    assert versions(copies) == [VERSION + 4, VERSION + 6], "old copies go"
    verify_manifest(copies / f"v{VERSION + 6:06d}")


def test_pinned_versions_have_a_copy_too(tmp_path: Path, model_folder: Path, make_batch: MakeBatch):
    store = ArtifactStore(f"{tmp_path / 'disk'}#{tmp_path / 'memory'}")
    run = Cadence(model_folder, partial(make_batch, pinned=(VERSION + 1,)), store)
    run.play(1, "none", "none", "none", "none")
    run.trainer.close()
    assert versions(tmp_path / "disk" / "weights" / "run" / "policy") == [VERSION + 1]
    assert versions(run.versions.weights) == [VERSION + n for n in (1, 3, 4)]


def test_versions_whose_rows_are_lost_too_are_passed_over(cadence: Callable[[str], Cadence]):
    run = cadence("run")
    run.play(1, "after", "none", "none")
    run.trainer.close()
    (run.versions.checkpoints / "since" / f"{VERSION + 2:06d}.json").unlink()
    run.trainer = BatchTrainer(run.store)
    learner = run.versions.start_of(run.batch(4, "none"))
    assert (learner.counters.updates, learner.behind) == (4, 2)


def test_a_published_version_is_a_whole_model_folder(
    one: Path, model_folder: Path, checkpoints: CheckpointStore, make_batch: MakeBatch
):
    assert one == checkpoints.weights / "v000004"
    model = AutoModelForCausalLM.from_pretrained(one)
    assert model.config.vocab_size == 15
    assert Renderer.from_folder(one).encode_text("go egg") == [6, 12]
    copied = {p.name for p in model_folder.iterdir()}
    assert {p.name for p in one.iterdir()} == copied | {"probe.json"}
    changed = (one / "model.safetensors").read_bytes() != (
        model_folder / "model.safetensors"
    ).read_bytes()
    assert changed
    assert json.loads((one / "config.json").read_text())["dtype"] == "float32"
    assert {p.stat().st_mode & 0o777 for p in one.iterdir()} == {0o644}


def test_a_version_has_all_files_of_the_tokenizer_and_processor(
    checkpoints: CheckpointStore,
    model_folder: Path,
    make_batch: MakeBatch,
    rows: list[TrainRow],
    tmp_path: Path,
):
    source = tmp_path / "source"
    shutil.copytree(model_folder, source)
    kept = {
        "additional_chat_templates/tool_use.jinja", "additional_chat_templates/rag.jinja", "generation_config.json",
        "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tokenizer.model.v3", "source.spm",
        "qwen.tiktoken", "chat_template.json", "bpe.codes",
    }  # fmt: skip
    left = {"manifest.json", "probe.json", "original/params.json", "README.md", "a.safetensors.index.json"}  # fmt: skip
    for name in kept | left:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("{}")
    ready = publish(checkpoints, Learner.fresh(source), make_batch, rows, 1)
    folder = Path(ready.uri)
    assert {name for name in kept | left if (folder / name).exists()} == kept | {
        "manifest.json",
        "probe.json",
    }
    assert {(folder / name).stat().st_mode & 0o777 for name in kept} == {0o644}
    verify_manifest(folder)
    copied, _ = copy_version(folder, lambda _: folder.with_name("v000009"), {"version": 9})
    verify_manifest(copied)
    save_model(folder, tmp_path / "saved", "")
    assert load_manifest(copied).files.keys() == load_manifest(tmp_path / "saved").files.keys()
    assert load_manifest(copied).files.keys() >= kept


def test_a_version_carries_what_its_weights_say_of_a_prompt(one: Path, tmp_path: Path) -> None:
    probe = json.loads((one / "probe.json").read_text())
    ids = torch.tensor(probe["ids"])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(one)(input_ids=ids[None]).logits[0]
    wanted = logits[:-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0].tolist()
    assert probe["logprobs"] == pytest.approx(wanted, abs=1e-4)
    (tmp_path / "next").mkdir()
    copy_companions(one, tmp_path / "next")
    assert not (tmp_path / "next" / "probe.json").exists(), "it is of these weights alone"


def test_a_version_is_announced_with_its_digest_and_report(one: Path, checkpoints: CheckpointStore):
    ready = checkpoints.ready(4)
    assert ready is not None
    assert (ready.version, ready.step, ready.uri) == (4, 1, str(one))
    assert ready.digest == verify_manifest(one)
    assert ready.metrics["updates"] == 4
    assert checkpoints.ready(5) is None


def test_old_versions_go_and_the_newest_stay(
    checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    learner = Learner.fresh(model_folder)
    for step in range(1, 5):
        publish(checkpoints, learner, make_batch, rows, step, keep=1)
    assert list(versions(checkpoints.weights)) == [6, 7]  # the newest may not be committed yet
    assert list(versions(checkpoints.checkpoints)) == [6, 7]
    assert model_folder.is_dir()


def test_a_changed_byte_is_refused(one: Path, checkpoints: CheckpointStore, model_folder: Path):
    data = bytearray((one / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (one / "model.safetensors").write_bytes(data)
    with pytest.raises(WeightsError, match=r"model.safetensors has changed"):
        checkpoints.load(4, model_folder)


def test_a_folder_of_another_run_is_refused(
    one: Path, checkpoints: CheckpointStore, model_folder: Path, tmp_path: Path
):
    other = CheckpointStore(ArtifactStore(str(tmp_path / "artifacts")), "other", "policy")
    shutil.copytree(checkpoints.weights, other.weights)
    with pytest.raises(
        WeightsError, match="belongs to run run, role policy, version 4; expected run other"
    ):
        other.load(4, model_folder)


def test_a_checkpoint_that_belongs_to_other_weights_is_refused(
    one: Path,
    checkpoints: CheckpointStore,
    model_folder: Path,
    make_batch: MakeBatch,
    rows: list[TrainRow],
    tmp_path: Path,
):
    other = CheckpointStore(ArtifactStore(str(tmp_path / "twin")), "run", "policy")
    batch = make_batch(learning_rate=1e-2)
    learner = Learner.fresh(model_folder)
    other.publish(learner, batch, learner.train(batch, rows), keep=3)
    shutil.rmtree(checkpoints.checkpoints)
    with pytest.raises(WeightsError, match="without it version 4 cannot be trained on"):
        checkpoints.load(4, model_folder)
    shutil.copytree(other.checkpoints, checkpoints.checkpoints)
    with pytest.raises(WeightsError, match="without it version 4 cannot be trained on"):
        checkpoints.load(4, model_folder)


def test_a_published_version_is_never_overwritten(
    one: Path,
    checkpoints: CheckpointStore,
    model_folder: Path,
    make_batch: MakeBatch,
    rows: list[TrainRow],
):
    before, state = verify_manifest(one), state_of(checkpoints, 4)
    batch, learner = make_batch(learning_rate=1e-2), Learner.fresh(model_folder)
    ready, mine = checkpoints.publish(learner, batch, learner.train(batch, rows), keep=3)
    assert (ready.digest, mine) == (before, False), "what is there is announced"
    assert verify_manifest(one) == before
    assert state_of(checkpoints, 4) == state, "and only its checkpoint stays"
    assert not [*checkpoints.weights.glob(".aside-*"), *checkpoints.checkpoints.glob(".aside-*")]


def test_a_writer_that_dies_leaves_no_version_and_its_rests_are_swept(
    checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    rest = checkpoints.weights / ".aside-v000004-deadbeef"
    rest.mkdir(parents=True)
    (rest / "model.safetensors").write_bytes(b"half")
    at_work = checkpoints.weights / ".aside-of-another-writer"
    at_work.mkdir()
    os.utime(rest, (time.time() - 7200, time.time() - 7200))
    assert checkpoints.newest() == -1
    publish(checkpoints, Learner.fresh(model_folder), make_batch, rows, 1)
    assert {p.name for p in checkpoints.weights.iterdir()} == {"v000004", at_work.name}


def test_a_writer_whose_clock_is_hours_ahead_of_the_disk_keeps_its_own_folder(tmp_path: Path):
    shift = {"PYTHONPATH": str(ROOT / "chaos" / "drift"), "CHAOS_CLOCK_SHIFT_S": "7200"}
    write = (
        "import sys; from pathlib import Path; from triforge.store.weight_folders import atomic_folder\n"
        "with atomic_folder(Path(sys.argv[1])) as aside: (aside / 'a').write_text('x')"
    )
    command = [sys.executable, "-c", write, str(tmp_path / "v")]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **shift}, timeout=60)
    assert (tmp_path / "v" / "a").read_text() == "x"


def test_the_first_batch_starts_from_the_initial_folder_and_later_ones_from_the_shelf(
    one: Path, checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch
):
    def start(step: int, version: int) -> Learner:
        batch = make_batch(step=step, version=version)
        return checkpoints.start_of(batch)

    assert start(1, VERSION).counters.updates == 0
    assert start(2, VERSION + 1).counters.updates == 4
    # published again under a higher number after other runs had used the same services
    assert start(2, VERSION + 20).counters.updates == 4


def test_a_damaged_version_does_no_harm_once_a_newer_one_serves(
    one: Path,
    checkpoints: CheckpointStore,
    model_folder: Path,
    make_batch: MakeBatch,
    rows: list[TrainRow],
):
    learner = checkpoints.load(VERSION + 1, model_folder)
    publish(checkpoints, learner, make_batch, rows, 2)
    (one / "manifest.json").write_text("{")
    assert checkpoints.newest() == VERSION + 2
    batch = make_batch(step=3, version=VERSION + 2)
    again = checkpoints.start_of(batch)
    publish(checkpoints, again, make_batch, rows, 3, keep=2)
    assert versions(checkpoints.weights) == [VERSION + 2, VERSION + 3], "it is pruned in its turn"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def foreign(path: Path) -> None:
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"run_id": "another"}))


@pytest.mark.parametrize(
    ("kind", "name", "damage", "part"),
    [
        ("weights", "manifest.json", truncate, "cannot be read"),
        ("weights", "model.safetensors", truncate, "model.safetensors has"),
        ("weights", "manifest.json", foreign, "belongs to run another"),
        ("checkpoints", "optimizer.safetensors", truncate, "optimizer.safetensors has"),
        ("checkpoints", "state.json", truncate, "state.json has"),
    ],
)
def test_a_damaged_version_is_refused_with_the_reason_and_the_one_before_it_is_used(
    one: Path, checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow],
    kind: str, name: str, damage: Callable[[Path], None], part: str,
):  # fmt: skip
    publish(checkpoints, checkpoints.load(VERSION + 1, model_folder), make_batch, rows, 2)
    (folder,) = getattr(checkpoints, kind).glob(f"v{VERSION + 2:06d}*")
    damage(folder / name)
    batch = make_batch(step=3, version=VERSION + 2)
    learner = checkpoints.start_of(batch)
    assert learner.counters.updates == 4, "that of step 1"
    (reason,) = checkpoints.passed_over
    assert part in reason
    ready, _ = checkpoints.publish(learner, batch, learner.train(batch, rows), keep=3)
    assert ready.version == VERSION + 3
    assert ready.metrics["passed_over"] == 1.0
    assert read_manifest(Path(ready.uri))["passed_over"] == [reason]


def test_a_version_that_is_gone_is_noted_and_the_samples_of_it_are_no_longer_those_of_the_trained_weights(
    one: Path,
    checkpoints: CheckpointStore,
    model_folder: Path,
    make_batch: MakeBatch,
    rows: list[TrainRow],
):
    publish(checkpoints, checkpoints.load(VERSION + 1, model_folder), make_batch, rows, 2)
    shutil.rmtree(checkpoints.weights / f"v{VERSION + 2:06d}")
    batch = make_batch(step=3, version=VERSION + 2)
    gone = make_batch(step=3, version=VERSION + 2, written=VERSION + 2)
    learner = checkpoints.start_of(gone)
    assert learner.counters.updates == 4
    (reason,) = checkpoints.passed_over
    assert f"v{VERSION + 2:06d}: not found" in reason

    def of(version: int) -> list[TrainRow]:
        return [row.model_copy(update={"versions": (version,) * len(row.ids)}) for row in rows]

    metrics = learner.train(batch, of(VERSION + 2)).metrics
    assert "logprob_mismatch" not in metrics, "sampled by weights that are lost"
    again = checkpoints.start_of(batch)
    assert checkpoints.passed_over == [], "under another number than its folder, nothing is gone"
    assert "logprob_mismatch" in again.train(batch, of(VERSION + 2)).metrics
    older = checkpoints.start_of(gone)
    found = older.train(batch, of(VERSION + 1)).metrics
    assert (found["lag_below_1"], "logprob_mismatch" in found) == (1.0, True)


def test_versions_that_people_went_back_from_are_not_trained_on_again(
    one: Path,
    checkpoints: CheckpointStore,
    model_folder: Path,
    make_batch: MakeBatch,
    rows: list[TrainRow],
):
    publish(checkpoints, checkpoints.load(VERSION + 1, model_folder), make_batch, rows, 2)
    about = {"version": VERSION + 3, "origin": VERSION + 1, "step": 2}
    again, _ = copy_version(one, lambda _: checkpoints.weights / f"v{VERSION + 3:06d}", about)
    (again / "model.safetensors").unlink()
    batch = make_batch(step=3, version=VERSION + 3)
    learner = checkpoints.start_of(batch)
    assert learner.counters.updates == 4, "that of step 1, not the 8 of the version given up"
    assert len(checkpoints.passed_over) == 1


def test_a_version_that_cannot_be_read_now_is_not_passed_over(
    one: Path, checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch
):
    (one / "manifest.json").unlink()
    (one / "manifest.json").mkdir()  # reading it is an error of the system, as of a disk that fails
    batch = make_batch(step=2, version=VERSION + 1)
    with pytest.raises(StorageError, match="cannot read"):
        checkpoints.start_of(batch)


def test_where_the_first_version_is_damaged_the_run_begins_anew_from_its_model(
    one: Path, checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch
):
    (one / "manifest.json").write_text("{")
    batch = make_batch(step=2, version=VERSION + 1)
    learner = checkpoints.start_of(batch)
    assert learner.counters.updates == 0


def test_where_no_version_is_whole_the_batch_is_refused_with_all_reasons(
    one: Path,
    checkpoints: CheckpointStore,
    model_folder: Path,
    make_batch: MakeBatch,
    rows: list[TrainRow],
):
    with pytest.raises(WeightsError, match="no whole version up to 3 of run run"):
        checkpoints.start_of(make_batch(step=5, version=3, base=0))
    publish(checkpoints, checkpoints.load(VERSION + 1, model_folder), make_batch, rows, 2)
    shutil.rmtree(one)
    (checkpoints.weights / f"v{VERSION + 2:06d}" / "manifest.json").write_text("{")
    batch = make_batch(step=3, version=VERSION + 2)
    with pytest.raises(WeightsError, match="no whole version up to 5") as refused:
        checkpoints.start_of(batch)
    assert len(refused.value.problems) == 1


def test_where_the_only_version_is_lost_the_run_begins_anew_from_its_model(
    one: Path, checkpoints: CheckpointStore, make_batch: MakeBatch, rows: list[TrainRow]
):
    shutil.rmtree(checkpoints.weights)
    batch = make_batch(step=2, version=VERSION + 1, written=VERSION + 1)
    learner = checkpoints.start_of(batch)
    assert learner.counters.updates == 0
    ready, _ = checkpoints.publish(learner, batch, learner.train(batch, rows), keep=3)
    assert (ready.version, ready.metrics["passed_over"]) == (VERSION + 2, 1.0)


def test_where_nothing_is_left_the_reason_names_the_folder_that_was_lost(
    one: Path,
    checkpoints: CheckpointStore,
    model_folder: Path,
    make_batch: MakeBatch,
    rows: list[TrainRow],
):
    publish(checkpoints, checkpoints.load(VERSION + 1, model_folder), make_batch, rows, 2)
    shutil.rmtree(checkpoints.weights)
    batch = make_batch(step=3, version=VERSION + 2, written=VERSION + 2)
    with pytest.raises(WeightsError) as caught:
        checkpoints.start_of(batch)
    assert f"{checkpoints.weights}/v{VERSION + 2:06d}: not found" in caught.value.detail


def test_a_disk_that_takes_nothing_is_a_storage_error(
    checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    checkpoints.weights.parent.parent.parent.mkdir()
    checkpoints.weights.parent.parent.write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot write"):
        publish(checkpoints, Learner.fresh(model_folder), make_batch, rows, 1)


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """The disk takes files of so many bytes and no larger ones: it fills while one is written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_while_a_version_is_written_damages_none_and_costs_none(
    one: Path, checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch
) -> None:
    learner = checkpoints.load(VERSION + 1, model_folder)
    before = [tensor.detach().clone() for tensor in learner.model.parameters().values()]
    batch = make_batch(step=2, version=VERSION + 1)
    report = learner.train(batch, sampled_rows(model_folder, 16, seed=2))
    state = state_of(checkpoints, VERSION + 1) / "optimizer.safetensors"
    with room_for(state.stat().st_size - 1), pytest.raises(StorageError, match="cannot write"):
        checkpoints.publish(learner, batch, report, keep=3)
    assert versions(checkpoints.weights) == versions(checkpoints.checkpoints) == [VERSION + 1]
    assert not [*checkpoints.weights.glob(".aside-*"), *checkpoints.checkpoints.glob(".aside-*")]
    again = checkpoints.load(VERSION + 1, model_folder)
    for tensor, wanted in zip(again.model.parameters().values(), before, strict=True):
        assert torch.equal(tensor, wanted)
    assert checkpoints.publish(learner, batch, report, keep=3)[0].version == VERSION + 2
    checkpoints.load(VERSION + 2, model_folder)


def test_a_batch_that_goes_back_trains_the_first_weights_with_an_empty_optimiser(
    checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    """Version 4 is what a loop began with, 5 and 6 are RL; 7 is made of 4, whose folders outlive `keep`."""
    learner = Learner.fresh(model_folder)
    first = publish(checkpoints, learner, make_batch, rows, 1)
    kept = {"pinned": (first.version,), "keep": 2}
    for step in (2, 3):
        batch = make_batch(step=step, version=VERSION + step - 1, **kept)
        checkpoints.publish(learner, batch, learner.train(batch, rows), keep=2)
    again = make_batch(
        step=4, version=first.version + 2, parent=first.version, written=first.version, **kept
    )
    assert versions(checkpoints.weights) == versions(checkpoints.checkpoints) == [4, 5, 6]
    begun = checkpoints.start_of(again)
    theta = checkpoints.load(first.version, model_folder)
    for name, tensor in theta.model.parameters().items():
        assert torch.equal(tensor, begun.model.parameters()[name]), name
    assert (begun.counters.updates, theta.counters.updates > 0) == (0, True)
    ready, mine = checkpoints.publish(begun, again, begun.train(again, rows), keep=2)
    assert mine
    about = read_manifest(Path(ready.uri))
    assert (ready.version, about["origin"], about["parent"]) == (7, 4, first.digest)
    of_base = make_batch(step=4, version=6, base=4, parent=4)
    assert checkpoints.start_of(of_base).counters.updates == 0
    assert checkpoints.parent == "", "the initial folder"
