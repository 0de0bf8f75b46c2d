"""`triforge run weights | save`: which weights a run has, and a copy that other programs read."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.models.tiny_models import TinyShape, build_tiny_model
from tests.unit.cli.conftest import Services, Triforge, run_state
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import SCHEMA, write_step_records
from triforge.types import Page, RunStep, WeightsRecord


@pytest.fixture
def model(services: Services, tmp_path: Path) -> Path:
    """The newest version of a run's policy."""
    folder = tmp_path / ("a rather long path " * 5) / "v000003"
    folder.parent.mkdir()
    build_tiny_model(folder, ["put", "the", "mug"], shape=TinyShape(hidden=16, layers=1, heads=1))
    rows = [
        WeightsRecord(role="policy", version=2, uri="/gone", digest="", at=0.0, kept=False),
        WeightsRecord(role="policy", version=3, uri=str(folder), digest="", at=0.0, kept=True, origin=1),
    ]  # fmt: skip
    services.say("GET /v1/runs/run-1", run_state("finished"))
    services.say("GET /v1/runs/run-1/weights", Page[WeightsRecord](items=tuple(rows)))
    return folder


def test_folders_are_printed_whole_a_line_each(triforge: Triforge, model: Path) -> None:
    code, out, _ = triforge("run", "weights", "run-1")
    assert (code, out.splitlines()) == (
        0, ["policy    2 gone /gone", f"policy    3 kept {model} (repeats 1)"],
    )  # fmt: skip


def test_a_saved_model_opens_in_transformers_with_its_tokenizer(
    triforge: Triforge, model: Path, tmp_path: Path
) -> None:
    assert model.is_dir()
    code, out, err = triforge("run", "save", "run-1", "--to", "mine")
    assert (code, out, err) == (0, "wrote mine: version 3 of the policy model of run-1\n", "")
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "mine", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "mine", local_files_only=True)
    ids = tokenizer("put the mug")["input_ids"]
    assert tokenizer.decode(ids).split() == ["put", "the", "mug"]
    assert opened.config.vocab_size >= max(ids)
    again = triforge("run", "save", "run-1", "--to", "mine")
    assert "triforge: --to: given mine, which exists" in again[2]


@pytest.fixture
def record(services: Services, model: Path, tmp_path: Path) -> None:
    """Add rollouts and steps of two versions to the run."""
    row = dict.fromkeys(SCHEMA.names) | {
        "trajectory_id": "t",
        "group_id": "g",
        "run_id": "run-1",
        "purpose": "train",
        "response": "x",
    }
    uri = write_step_records(ArtifactStore(str(tmp_path / "artifacts")), "1.parquet", [row])
    record = ArtifactStore(str(tmp_path / "artifacts")).read(uri)
    services.answers["GET /v1/runs/run-1/export"] = (200, "application/octet-stream", record)
    steps = tuple(
        RunStep(run_id="run-1", step=n, at=0.0, policy_version=n + 2, reward_version=1, metrics={"success": n / 4})
        for n in (1, 2)
    )  # fmt: skip
    services.say("GET /v1/runs/run-1/steps", Page[RunStep](items=steps))


@pytest.mark.usefixtures("record")
def test_a_run_is_written_as_the_hub_has_it(triforge: Triforge, tmp_path: Path) -> None:
    assert triforge("run", "publish-hf", "run-1", "--to", "hub")[0] == 2  # where to, or --dry-run
    code, out, err = triforge("run", "publish-hf", "run-1", "--to", "hub", "--dry-run")
    assert (code, err) == (0, ""), out
    card = (tmp_path / "hub" / "model" / "README.md").read_text()
    assert card.startswith("---\npipeline_tag: text-generation\n")
    assert all(fact in card for fact in ("policy, version 3", "| success | 0.25 |", "mine [bold]"))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "hub" / "model", local_files_only=True)
    assert [*(tmp_path / "hub" / "dataset").rglob("*.parquet")]


class Hub:
    """The hub, with a repository that is public."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.sent: list[tuple[str, str, str]] = []

    def create_repo(self, name: str, *, repo_type: str, private: bool, exist_ok: bool) -> None:
        assert (private, exist_ok) == (True, True)
        if name.startswith("stranger/"):
            raise OSError("403: not yours")
        self.made.append(name)

    def repo_info(self, name: str, *, repo_type: str) -> SimpleNamespace:
        return SimpleNamespace(private=name != "me/shown-rollouts")

    def upload_folder(self, *, repo_id: str, repo_type: str, folder_path: str) -> None:
        self.sent.append((repo_id, repo_type, folder_path))


@pytest.mark.usefixtures("record")
def test_a_run_is_pushed_into_private_repositories_only(
    triforge: Triforge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = Hub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=lambda: hub))
    for repo, why in (
        ("stranger/m", "403"),
        ("me/shown", "me/shown-rollouts exists and is public"),
    ):
        code, _, err = triforge("run", "publish-hf", "run-1", "--to", "hub", "--repo", repo)
        assert (code, why in err, hub.sent) == (1, True, [])
        assert not (tmp_path / "hub").exists()  # the same command works once that is mended
    code, out, _ = triforge("run", "publish-hf", "run-1", "--to", "hub", "--repo", "me/m")
    assert (code, out.splitlines()[-1]) == (0, "pushed me/m and me/m-rollouts")
    assert hub.sent == [("me/m", "model", "hub/model"), ("me/m-rollouts", "dataset", "hub/dataset")]


def test_a_damaged_version_is_not_saved(triforge: Triforge, model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").write_bytes(b"short")
    code, _, err = triforge("run", "save", "run-1", "--to", "mine")
    assert code == 1
    assert "model.safetensors" in err
    assert not (tmp_path / "mine").exists()


def test_a_folder_of_another_machine_is_named(triforge: Triforge, services: Services) -> None:
    row = WeightsRecord(role="reward", version=1, uri="/elsewhere", digest="", at=0.0, kept=True)
    services.say("GET /v1/runs/run-1", run_state("finished"))
    services.say("GET /v1/runs/run-1/weights", Page[WeightsRecord](items=(row,)))
    code, _, err = triforge("run", "save", "run-1", "--to", "mine", "--role", "reward")
    assert (code, err.startswith("triforge: /elsewhere: not on this machine")) == (1, True)
