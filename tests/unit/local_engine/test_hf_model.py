from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from services.local_engine.llama import LlamaShape
from services.local_engine.model import load_model, stage_weights
from tests.unit.local_engine.models import (
    new_scheduler,
    new_sequence,
    plain_logprobs,
    plain_model,
    random_prompts,
    run_all,
)
from triforge.errors import WeightsError

SIZES = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.25, "eos_token_id": 2,
    "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {
    "vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.25,
    "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip


def build(folder: Path, kind: str, **more: Any) -> Path:
    sizes = GPT2 if kind == "gpt2" else SIZES
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **(sizes | more))
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen2", {}),
        ("qwen3", {"head_dim": 16}),
        ("gpt2", {}),
        ("llama", {"attention_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
        ("cohere", {"logit_scale": 0.25}),  # scales its logits behind the output matrix
    ],
)
def test_logprobs_of_other_decoders(tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    folder = build(tmp_path / "m", kind, **more)
    assert LlamaShape.from_config(json.loads((folder / "config.json").read_text())) is None
    scheduler, model = new_scheduler(folder), plain_model(folder)
    prompts = random_prompts(7, shared=20)
    for seq in run_all(
        scheduler, [new_sequence(p, i, max_new_tokens=6) for i, p in enumerate(prompts)]
    ):
        expected = plain_logprobs(model, seq.ids, seq.output)
        assert seq.logprobs == pytest.approx(expected, abs=1e-4)


def test_weights_of_another_decoder_can_be_staged_again(tmp_path: Path) -> None:
    folder = build(tmp_path / "m", "qwen2", tie_word_embeddings=True)
    model, config = load_model(folder)
    model.apply(stage_weights(folder, model, config))


@pytest.mark.parametrize(("kind", "more"), [("falcon", {"alibi": True}), ("bloom", {})])
def test_other_positions_are_refused(tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    sizes = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(kind, **sizes, **more, initializer_range=0.25)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=r"slot cache|scaled_dot_product_attention"):
        load_model(tmp_path)


def test_a_mistral_with_a_window_is_refused_and_one_without_is_served(tmp_path: Path) -> None:
    load_model(build(tmp_path / "wide", "mistral", sliding_window=None))
    with pytest.raises(WeightsError, match="full attention only"):
        load_model(build(tmp_path / "narrow", "mistral", sliding_window=16))
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    with pytest.raises(WeightsError, match="full attention only"):
        load_model(build(tmp_path / "layers", "qwen2", **window))
