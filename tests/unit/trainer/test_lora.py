"""A learner that trains an adapter: over which base, what is kept of it, and what comes of adding it to the base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.commands import run
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.lora import AdaptedModel, LoraShape, merge
from tests.unit.trainer.conftest import VERSION, MakeBatch
from triforge.errors import ConfigError, WeightsError
from triforge.store.manifests import read_manifest, verify_manifest
from triforge.store.model_digest import model_digest
from triforge.types import TrainRow, WeightsReady

SHAPE = LoraShape(rank=3, alpha=6)
OPTIONS = {"lora_rank": 3, "lora_alpha": 6, "learning_rate": 1e-2}
IDS = [6, 9, 12, 7, 14, 8]
LINEAR = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def publish(
    checkpoints: CheckpointStore,
    learner: Learner,
    make_batch: MakeBatch,
    rows: list[TrainRow],
    step: int = 1,
    keep: int = 3,
) -> WeightsReady:
    batch = make_batch(step=step, version=VERSION + step - 1, **OPTIONS)
    return checkpoints.publish(learner, batch, learner.train(batch, rows), keep=keep)[0]


@pytest.fixture
def one(
    checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
) -> Path:
    """The folder of the first version of a learner of adapters."""
    learner = Learner.fresh(model_folder, shape=SHAPE)
    return Path(publish(checkpoints, learner, make_batch, rows).uri)


def plain(folder: Path) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return scores_of(model)


@torch.no_grad()
def scores_of(model: torch.nn.Module) -> list[float]:
    scores = model(torch.tensor([IDS])).logits[0].log_softmax(-1)
    return [float(scores[place, token]) for place, token in enumerate(IDS[1:])]


def test_before_the_first_step_the_policy_is_its_base_exactly(model_folder: Path):
    fresh = Learner.fresh(model_folder, shape=SHAPE)
    assert isinstance(fresh.model, AdaptedModel)
    assert fresh.model.logprobs(IDS) == scores_of(ScoringModel.load(model_folder).module)
    names = fresh.model.parameters()
    assert {name.split(".")[4] for name in names} == set(LINEAR)
    assert {part.shape[0] for name, part in names.items() if "lora_A" in name} == {3}


def test_the_same_seed_draws_the_same_adapter(model_folder: Path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    drawn = [
        torch.cat([t.flatten() for t in AdaptedModel.over(model_folder, SHAPE, seed=seed).tensors().values()])
        for seed in (1, 1, 2)
    ]  # fmt: skip
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(before, torch.get_rng_state())


def test_only_the_adapter_is_trained_and_kept(
    checkpoints: CheckpointStore, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    digest = model_digest(model_folder)
    learner = Learner.fresh(model_folder, shape=SHAPE)
    ready = publish(checkpoints, learner, make_batch, rows)
    assert model_digest(model_folder) == digest
    assert isinstance(learner.model, AdaptedModel)
    with learner.model.without_adapter():
        assert learner.model.logprobs(IDS) == scores_of(ScoringModel.load(model_folder).module)
    assert learner.model.logprobs(IDS) != plain(model_folder)
    assert all("lora_" in name for name in learner.saved().tensors["optimizer"])
    folder = Path(ready.uri)
    assert not (folder / "model.safetensors").exists()
    about = read_manifest(folder)
    assert about["base"] == {"uri": str(model_folder), "digest": digest}
    assert ready.digest == verify_manifest(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["target_modules"]) == (3, 6, LINEAR)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # asked by PEFT
def test_a_version_is_what_peft_reads(one: Path, checkpoints: CheckpointStore, model_folder: Path):
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    read = PeftModel.from_pretrained(base, one)
    own = checkpoints.load(4, model_folder, SHAPE).model
    assert isinstance(own, AdaptedModel)
    assert scores_of(read) == pytest.approx(own.logprobs(IDS), abs=1e-6)
    probe = json.loads((one / "probe.json").read_text())
    assert probe["logprobs"] == own.logprobs(probe["ids"])


def test_the_anchor_of_the_first_model_is_the_model_without_its_adapter(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    """After a step the distance to the base is that of the log-probabilities, and not 0."""
    learner = Learner.fresh(model_folder, shape=SHAPE)
    first = learner.train(make_batch(updates_per_step=1, kl_beta=0.1, **OPTIONS), rows).metrics
    assert first["kl_k3"] == pytest.approx(0.0, abs=1e-7)
    second = learner.train(make_batch(updates_per_step=1, kl_beta=0.1, **OPTIONS), rows).metrics
    assert second["kl_k3"] > 1e-5
    assert all(p.requires_grad for n, p in learner.model.module.named_parameters() if "lora_" in n)


def test_an_adapter_added_to_its_base_computes_what_both_did(
    one: Path,
    checkpoints: CheckpointStore,
    model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    adapted = checkpoints.load(4, model_folder, SHAPE).model
    assert isinstance(adapted, AdaptedModel)
    assert run("merge-lora", ["--adapter", str(one), "--out", str(tmp_path / "whole")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'whole'}\n"
    assert plain(tmp_path / "whole") == pytest.approx(adapted.logprobs(IDS), abs=1e-5)
    assert plain(tmp_path / "whole") != pytest.approx(plain(model_folder), abs=1e-3)
    verify_manifest(tmp_path / "whole")
    with pytest.raises(WeightsError, match="exists"):
        merge(one, tmp_path / "whole", base=model_folder)


def test_a_learner_goes_on_only_with_the_adapter_and_the_base_it_began_with(
    one: Path, checkpoints: CheckpointStore, model_folder: Path, tmp_path: Path
):
    for shape, says in (
        (None, "lora_rank 0, but .* holds an adapter"),
        (LoraShape(4, 6), "given r = 4"),
        (LoraShape(3, 6, ("q_proj",)), "given target_modules"),
    ):
        with pytest.raises(ConfigError, match=says):
            checkpoints.load(4, model_folder, shape)
    merge(one, tmp_path / "other")
    with pytest.raises(WeightsError, match="is not the base of"):
        checkpoints.load(4, tmp_path / "other", SHAPE)


@pytest.mark.parametrize("target", ["lm_head", "no_proj"])
def test_layers_that_cannot_have_an_adapter_are_named(model_folder: Path, target: str):
    with pytest.raises(ConfigError, match=rf"given \['{target}'\], expected .* q_proj"):
        AdaptedModel.over(model_folder, LoraShape(2, 4, (target,)))
