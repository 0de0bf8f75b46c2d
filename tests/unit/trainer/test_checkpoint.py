from __future__ import annotations

import contextlib
import json
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer.checkpoint import Shelf
from services.trainer.learner import Learner
from services.trainer.weight_folders import atomic_folder, copy_version, versions
from tests.unit.trainer.conftest import VERSION, MakeBatch, sampled_rows
from triforge.errors import StorageError, WeightsError
from triforge.rendering import Renderer
from triforge.store.artifacts import ArtifactStore
from triforge.store.manifests import read_manifest, verify_manifest
from triforge.types import TrainRow


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(ArtifactStore(str(tmp_path / "artifacts")), "run", "policy")


def publish(
    shelf: Shelf,
    learner: Learner,
    make_batch: MakeBatch,
    rows: list[TrainRow],
    step: int,
    keep: int = 3,
):
    batch = make_batch(step=step, version=VERSION + step - 1)
    return shelf.publish(learner, batch, learner.train(batch, rows), keep=keep)


@pytest.fixture
def one(shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]) -> Path:
    """The weight folder of a shelf with one published version."""
    return Path(publish(shelf, Learner.fresh(model_folder), make_batch, rows, 1).uri)


def test_three_steps_equal_one_step_and_two_after_a_reload_bit_for_bit(
    tmp_path: Path, model_folder: Path, make_batch: MakeBatch
):
    data = {step: sampled_rows(model_folder, 16, seed=step) for step in (1, 2, 3)}
    files = []
    for name, reload in (("straight", False), ("resumed", True)):
        shelf = Shelf(ArtifactStore(str(tmp_path / name)), "run", "policy")
        learner = Learner.fresh(model_folder)
        for step in (1, 2, 3):
            ready = publish(shelf, learner, make_batch, data[step], step)
            if reload and step == 1:
                learner = shelf.load(ready.version, model_folder)
        folders = (shelf.weights / "v000006", shelf.checkpoints / "v000006")
        files.append([(f / n).read_bytes() for f, n in zip(folders, (
            "model.safetensors", "optimizer.safetensors"), strict=True)])  # fmt: skip
    assert files[0] == files[1]


def test_a_published_version_is_a_whole_model_folder(
    one: Path, model_folder: Path, shelf: Shelf, make_batch: MakeBatch
):
    assert one == shelf.weights / "v000004"
    model = AutoModelForCausalLM.from_pretrained(one)
    assert model.config.vocab_size == 15
    assert Renderer.from_folder(one).encode_text("go egg") == [6, 12]
    copied = {p.name for p in model_folder.iterdir()}
    assert {p.name for p in one.iterdir()} == copied
    changed = (one / "model.safetensors").read_bytes() != (
        model_folder / "model.safetensors"
    ).read_bytes()
    assert changed
    assert json.loads((one / "config.json").read_text())["dtype"] == "float32"
    assert {p.stat().st_mode & 0o777 for p in one.iterdir()} == {0o644}


def test_a_version_is_announced_with_its_digest_and_report(one: Path, shelf: Shelf):
    ready = shelf.ready(4)
    assert ready is not None
    assert (ready.version, ready.step, ready.uri) == (4, 1, str(one))
    assert ready.digest == verify_manifest(one)
    assert ready.report is not None
    assert ready.report.metrics["updates"] == 4
    assert shelf.ready(5) is None


def test_old_versions_go_and_the_newest_stay(
    shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    learner = Learner.fresh(model_folder)
    for step in range(1, 5):
        publish(shelf, learner, make_batch, rows, step, keep=1)
    assert list(versions(shelf.weights)) == [6, 7]  # the newest may not be committed yet
    assert list(versions(shelf.checkpoints)) == [6, 7]
    assert model_folder.is_dir()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_truncated_file_is_refused_by_name(
    one: Path, shelf: Shelf, model_folder: Path, name: str
):
    size = (one / name).stat().st_size
    with (one / name).open("rb+") as file:
        file.truncate(size - 1)
    with pytest.raises(WeightsError, match=f"{name} has {size - 1} bytes, expected {size}"):
        shelf.load(4, model_folder)


def test_a_changed_byte_is_refused(one: Path, shelf: Shelf, model_folder: Path):
    data = bytearray((one / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (one / "model.safetensors").write_bytes(data)
    with pytest.raises(WeightsError, match=r"model.safetensors has changed"):
        shelf.load(4, model_folder)


def test_missing_and_additional_files_are_refused(one: Path):
    (one / "tokenizer.json").unlink()
    (one / "more.safetensors").write_bytes(b"x")
    with pytest.raises(WeightsError) as caught:
        verify_manifest(one)
    assert caught.value.problems == (
        "tokenizer.json is missing, manifest.json names it",
        "more.safetensors is not in the manifest",
    )


def test_a_folder_of_another_run_is_refused(
    one: Path, shelf: Shelf, model_folder: Path, tmp_path: Path
):
    other = Shelf(ArtifactStore(str(tmp_path / "artifacts")), "other", "policy")
    shutil.copytree(shelf.weights, other.weights)
    with pytest.raises(
        WeightsError, match="belongs to run run, role policy, version 4; expected run other"
    ):
        other.load(4, model_folder)


def test_a_checkpoint_that_belongs_to_other_weights_is_refused(
    one: Path,
    shelf: Shelf,
    model_folder: Path,
    make_batch: MakeBatch,
    rows: list[TrainRow],
    tmp_path: Path,
):
    other = Shelf(ArtifactStore(str(tmp_path / "twin")), "run", "policy")
    batch = make_batch(learning_rate=1e-2)
    learner = Learner.fresh(model_folder)
    other.publish(learner, batch, learner.train(batch, rows), keep=3)
    shutil.rmtree(shelf.checkpoints)
    with pytest.raises(WeightsError, match="without it version 4 cannot be trained on"):
        shelf.load(4, model_folder)
    shutil.copytree(other.checkpoints, shelf.checkpoints)
    with pytest.raises(WeightsError, match="does not belong to"):
        shelf.load(4, model_folder)


def test_a_folder_without_a_manifest_of_ours_is_refused(one: Path):
    (one / "manifest.json").write_text("{}")
    with pytest.raises(WeightsError, match="is not of the format"):
        read_manifest(one)
    (one / "manifest.json").write_text("{")
    with pytest.raises(WeightsError, match="cannot be read"):
        read_manifest(one)
    (one / "manifest.json").unlink()
    with pytest.raises(WeightsError, match=r"no manifest.json"):
        verify_manifest(one)


def test_a_published_version_is_never_overwritten(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    before = verify_manifest(one)
    with pytest.raises(WeightsError, match="exists, expected a new one"):
        publish(shelf, Learner.fresh(model_folder), make_batch, rows, 1)
    assert verify_manifest(one) == before


def test_a_writer_that_dies_leaves_no_version_and_its_rests_are_swept(
    shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    rest = shelf.weights / ".aside-v000004-deadbeef"
    rest.mkdir(parents=True)
    (rest / "model.safetensors").write_bytes(b"half")
    assert shelf.newest() is None
    publish(shelf, Learner.fresh(model_folder), make_batch, rows, 1)
    assert [p.name for p in shelf.weights.iterdir()] == ["v000004"]


def test_a_folder_whose_writing_fails_does_not_appear(tmp_path: Path):
    def fill() -> None:
        with atomic_folder(tmp_path / "v") as aside:
            (aside / "a").write_text("x")
            (aside / "missing" / "b").write_text("x")

    with pytest.raises(StorageError, match="cannot write"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_the_first_batch_starts_from_the_initial_folder_and_later_ones_from_the_shelf(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch
):
    def start(step: int, version: int) -> Learner:
        batch = make_batch(step=step, version=version)
        return shelf.start_of(batch, base_version=VERSION, initial=model_folder)

    assert start(1, VERSION).counters.updates == 0
    assert start(2, VERSION + 1).counters.updates == 4
    # published again under a higher number after other runs had used the same services
    assert start(2, VERSION + 20).counters.updates == 4


def test_a_damaged_version_hinders_nobody_once_a_newer_one_serves(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    learner = shelf.load(VERSION + 1, model_folder)
    publish(shelf, learner, make_batch, rows, 2)
    (one / "manifest.json").write_text("{")
    assert shelf.newest() == VERSION + 2
    batch = make_batch(step=3, version=VERSION + 2)
    again = shelf.start_of(batch, base_version=VERSION, initial=model_folder)
    publish(shelf, again, make_batch, rows, 3, keep=2)
    assert versions(shelf.weights) == [VERSION + 2, VERSION + 3], "it is pruned in its turn"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def foreign(path: Path) -> None:
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"run_id": "another"}))


@pytest.mark.parametrize(
    ("kind", "name", "damage", "said"),
    [
        ("weights", "manifest.json", truncate, "cannot be read"),
        ("weights", "model.safetensors", truncate, "model.safetensors has"),
        ("weights", "manifest.json", foreign, "belongs to run another"),
        ("checkpoints", "optimizer.safetensors", truncate, "optimizer.safetensors has"),
        ("checkpoints", "state.json", truncate, "state.json has"),
    ],
)
def test_a_damaged_version_is_refused_with_the_reason_and_the_one_before_it_is_used(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow],
    kind: str, name: str, damage: Callable[[Path], None], said: str,
):  # fmt: skip
    publish(shelf, shelf.load(VERSION + 1, model_folder), make_batch, rows, 2)
    damage(getattr(shelf, kind) / f"v{VERSION + 2:06d}" / name)
    batch = make_batch(step=3, version=VERSION + 2)
    learner = shelf.start_of(batch, base_version=VERSION, initial=model_folder)
    assert learner.counters.updates == 4, "that of step 1"
    (reason,) = shelf.passed_over
    assert said in reason
    ready = shelf.publish(learner, batch, learner.train(batch, rows), keep=3)
    assert ready.version == VERSION + 3
    assert ready.report is not None
    assert ready.report.metrics["passed_over"] == 1.0
    assert read_manifest(Path(ready.uri))["passed_over"] == [reason]


def test_a_version_that_is_gone_is_noted_and_the_samples_of_it_are_no_longer_those_of_the_trained_weights(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    publish(shelf, shelf.load(VERSION + 1, model_folder), make_batch, rows, 2)
    shutil.rmtree(shelf.weights / f"v{VERSION + 2:06d}")
    batch = make_batch(step=3, version=VERSION + 2)
    learner = shelf.start_of(
        batch, base_version=VERSION, expected=VERSION + 2, initial=model_folder
    )
    assert learner.counters.updates == 4
    (reason,) = shelf.passed_over
    assert f"v{VERSION + 2:06d}: not found" in reason

    def of(version: int) -> list[TrainRow]:
        return [row.model_copy(update={"versions": (version,) * len(row.ids)}) for row in rows]

    metrics = learner.train(batch, of(VERSION + 2)).metrics
    assert "logprob_mismatch" not in metrics, "sampled by weights that nobody has any more"
    again = shelf.start_of(batch, base_version=VERSION, initial=model_folder)
    assert shelf.passed_over == [], "under another number than its folder, nothing is gone"
    assert "logprob_mismatch" in again.train(batch, of(VERSION + 2)).metrics
    older = shelf.start_of(batch, base_version=VERSION, expected=VERSION + 2, initial=model_folder)
    found = older.train(batch, of(VERSION + 1)).metrics
    assert (found["lag_below_1"], "logprob_mismatch" in found) == (1.0, True)


def test_versions_that_people_went_back_from_are_not_trained_on_again(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    publish(shelf, shelf.load(VERSION + 1, model_folder), make_batch, rows, 2)
    for parent in (shelf.checkpoints, shelf.weights):
        about = {"version": VERSION + 3, "origin": VERSION + 1, "step": 2}
        again, _ = copy_version(parent, old=VERSION + 1, new=VERSION + 3, about=about)
    (again / "model.safetensors").unlink()
    batch = make_batch(step=3, version=VERSION + 3)
    learner = shelf.start_of(batch, base_version=VERSION, initial=model_folder)
    assert learner.counters.updates == 4, "that of step 1, not the 8 of the version given up"
    assert len(shelf.passed_over) == 1


def test_a_version_that_cannot_be_read_now_is_not_passed_over(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch
):
    (one / "manifest.json").unlink()
    (one / "manifest.json").mkdir()  # reading it is an error of the system, as of a disk that fails
    batch = make_batch(step=2, version=VERSION + 1)
    with pytest.raises(StorageError, match="cannot read"):
        shelf.start_of(batch, base_version=VERSION, initial=model_folder)


def test_where_the_first_version_is_damaged_the_run_begins_anew_from_its_model(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch
):
    (one / "manifest.json").write_text("{")
    batch = make_batch(step=2, version=VERSION + 1)
    learner = shelf.start_of(batch, base_version=VERSION, initial=model_folder)
    assert learner.counters.updates == 0


def test_where_no_version_is_whole_the_batch_is_refused_with_all_reasons(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    publish(shelf, shelf.load(VERSION + 1, model_folder), make_batch, rows, 2)
    shutil.rmtree(one)
    (shelf.weights / f"v{VERSION + 2:06d}" / "manifest.json").write_text("{")
    batch = make_batch(step=3, version=VERSION + 2)
    with pytest.raises(WeightsError, match="no whole version up to 5") as refused:
        shelf.start_of(batch, base_version=VERSION, initial=model_folder)
    assert len(refused.value.problems) == 1


def test_a_batch_whose_version_is_nowhere_is_refused(
    shelf: Shelf, model_folder: Path, make_batch: MakeBatch
):
    batch = make_batch(step=5, version=9)
    with pytest.raises(WeightsError, match="no whole version up to 9 of run run"):
        shelf.start_of(batch, base_version=VERSION, initial=model_folder)


def test_a_disk_that_takes_nothing_is_a_storage_error(
    shelf: Shelf, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    shelf.weights.parent.parent.parent.mkdir()
    shelf.weights.parent.parent.write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot create"):
        publish(shelf, Learner.fresh(model_folder), make_batch, rows, 1)


@contextlib.contextmanager
def service_for(size: int) -> Iterator[None]:
    """The disk takes files of so many bytes and no larger ones: it fills while one is written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_while_a_version_is_written_damages_none_and_costs_none(
    one: Path, shelf: Shelf, model_folder: Path, make_batch: MakeBatch
) -> None:
    learner = shelf.load(VERSION + 1, model_folder)
    before = [tensor.detach().clone() for tensor in learner.model.parameters().values()]
    batch = make_batch(step=2, version=VERSION + 1)
    report = learner.train(batch, sampled_rows(model_folder, 16, seed=2))
    state = shelf.checkpoints / one.name / "optimizer.safetensors"
    with service_for(state.stat().st_size - 1), pytest.raises(StorageError, match="cannot write"):
        shelf.publish(learner, batch, report, keep=3)
    assert versions(shelf.weights) == versions(shelf.checkpoints) == [VERSION + 1]
    assert not [*shelf.weights.glob(".aside-*"), *shelf.checkpoints.glob(".aside-*")]
    again = shelf.load(VERSION + 1, model_folder)
    for tensor, wanted in zip(again.model.parameters().values(), before, strict=True):
        assert torch.equal(tensor, wanted)
    assert shelf.publish(learner, batch, report, keep=3).version == VERSION + 2
    shelf.load(VERSION + 2, model_folder)
