"""Mixtures of experts, whose folders have a tensor an expert and whose modules one of all: engine and learner read them, and a
version is written as transformers and other engines read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from services.local_engine.model import load_model, stage_weights
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.weights.tensors import TENSORS
from tests.unit.local_engine.models import (
    new_scheduler,
    new_sequence,
    plain_logprobs,
    plain_model,
    random_prompts,
    run_all,
)
from triforge.errors import WeightsError

SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.25,
    "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, "num_experts_per_tok": 2,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "sliding_window": None},
    "qwen3_moe": {"num_experts": 4, "head_dim": 8, "norm_topk_prob": True},
}
EXPERT = {"mixtral": "block_sparse_moe.experts.3.w1", "qwen3_moe": "mlp.experts.3.gate_proj"}
IDS = torch.tensor([[1, 13, 11, 5, 6, 9, 7, 42, 2]])


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random mixture of experts as transformers saves it."""
    made = tmp_path_factory.mktemp(kind) / "m"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **SIZES, **KINDS[kind])
        AutoModelForCausalLM.from_config(config).save_pretrained(made)
    assert any(EXPERT[kind] in name for name in load_file(made / TENSORS)), "an expert a tensor"
    return made


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    """In float64, so that only the weights can differ."""
    model.set_experts_implementation("eager")  # the fast ones know no float64
    return model.double()(IDS).logits


@pytest.fixture(scope="module")
def version(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A version of the model after one update of every weight, and the logits of the model that was published."""
    model = ScoringModel.load(folder)
    assert torch.equal(logits(ScoringModel.load(folder).module), logits(plain_model(folder)))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters().values()):
            generator = torch.Generator().manual_seed(number)
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    target = folder.parent / "v000001"
    model.publish(target, {"kind": "test"}, model.weights(IDS[0].tolist()), folder)
    return target, logits(model.module)


def test_a_version_is_written_as_the_folder_was_and_read_back_exactly(
    folder: Path, version: tuple[Path, torch.Tensor]
) -> None:
    written, wanted = version
    before, after = (load_file(one / TENSORS) for one in (folder, written))
    assert {n: t.shape for n, t in after.items()} == {n: t.shape for n, t in before.items()}
    assert not any(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(logits(plain_model(written)), wanted)
    assert torch.equal(logits(ScoringModel.load(written).module), wanted)


def test_the_engine_serves_it_and_the_version_after_it(
    folder: Path, version: tuple[Path, torch.Tensor]
) -> None:
    scheduler = new_scheduler(folder)
    for number, source in enumerate((folder, version[0])):
        if number:
            _, config = load_model(folder)
            scheduler.swap(stage_weights(source, scheduler.model, config), str(number))
        plain = plain_model(source)
        asked = [new_sequence(p, i, max_new_tokens=6) for i, p in enumerate(random_prompts(5))]
        for seq in run_all(scheduler, asked):
            assert seq.logprobs == pytest.approx(plain_logprobs(plain, seq.ids, seq.output), abs=1e-4)  # fmt: skip


@pytest.mark.parametrize("load", [load_model, ScoringModel.load])
def test_a_folder_without_one_of_the_experts_is_refused(
    load: Callable[[Path], Any], folder: Path, kind: str, tmp_path: Path
) -> None:
    tensors = load_file(folder / TENSORS)
    kept = {name: tensor for name, tensor in tensors.items() if EXPERT[kind] not in name}
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(kept, tmp_path / TENSORS, metadata={"format": "pt"})
    with pytest.raises(WeightsError):
        load(tmp_path)
