"""`triforge run weights | save`: which weights a run has, and a copy that other programs read."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.models.tiny_models import TinyShape, build_tiny_model
from tests.unit.cli.conftest import WORSE, Services, Triforge, run_state
from triforge.store.manifests import verify_manifest
from triforge.types import Page, WeightsRecord


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


def test_saved_model_opens(triforge: Triforge, model: Path, tmp_path: Path) -> None:
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


def test_a_saved_policy_has_a_card_with_the_verdict_and_without_paths(
    triforge: Triforge, services: Services, model: Path, tmp_path: Path
) -> None:
    hub = "/cache/models--acme--small-1/snapshots/0a1b"
    config = {"models": {"policy": {"path": hub}}}
    run = run_state("finished", verdict=WORSE, config=config, algorithm="grpo: no votes")
    services.say("GET /v1/runs/run-1", run)
    assert triforge("run", "save", "run-1", "--to", "mine")[0] == 0
    card = (tmp_path / "mine" / "README.md").read_text()
    for text in ("base_model: acme/small-1\n", "worse: held-out success fell", "ran off", "grpo"):
        assert text in card
    assert not any(path in card for path in ("/cache", str(tmp_path)))
    verify_manifest(tmp_path / "mine")
    services.say("GET /v1/runs/run-1", run.model_copy(update={"policy_version": 4}))
    assert triforge("run", "save", "run-1", "--to", "older")[0] == 0
    assert "held-out" not in (tmp_path / "older" / "README.md").read_text(), "of the newest alone"


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
