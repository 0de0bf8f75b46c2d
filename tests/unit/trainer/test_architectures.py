"""Small models of each architecture in the local engine and in the learner."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from services.local_engine.model import load_model
from services.trainer.learner.model.causal_lm import ScoringModel
from triforge.errors import TriforgeError

_SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "served_by", "packs"),
    [("llama", "LlamaModel", True), ("qwen3", "TransformersModel", True), ("gemma2", "", False)],
)
def test_a_small_model_is_served_and_trained(
    tmp_path: Path, kind: str, served_by: str, packs: bool
) -> None:
    config = CONFIG_MAPPING[kind](**_SIZES)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    if served_by:
        assert type(load_model(tmp_path)[0]).__name__ == served_by
    else:
        with pytest.raises(TriforgeError):
            load_model(tmp_path)
    assert ScoringModel.load(tmp_path).packs is packs
