"""Two configs of one forward pass are the same, however they were written; of two they are not."""

from __future__ import annotations

from typing import Any

import pytest

from triforge.store.model_config import difference

OLD: dict[str, Any] = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0",
    "hidden_act": "silu",
    "head_dim": None,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "rope_scaling": None,
    "attention_dropout": 0.0,
    "eos_token_id": 2,
}
NEW: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "float32",
    "transformers_version": "5.2.0",
    "hidden_act": "silu",
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "attention_dropout": 0.1,
    "eos_token_id": [2, 3],
    "_attn_implementation": "sdpa",
}


def test_how_a_config_was_written_makes_no_difference() -> None:
    assert difference(OLD, NEW) is None
    assert difference(NEW, OLD) is None
    assert difference({"text_config": OLD}, {"text_config": NEW}) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rms_norm_eps": 1e-6}, ("rms_norm_eps", 1e-6, 1e-5)),
        ({"hidden_act": "gelu"}, ("hidden_act", "gelu", "silu")),
        ({"rope_parameters": {"rope_theta": 5e5}}, ("rope_theta", 5e5, 10000)),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, ("rope_type", "yarn", "default")),
        ({"rope_scaling": "nonsense", "head_dim": 32}, None),
    ],
)
def test_another_forward_pass_is_named(change: dict[str, Any], expected: Any) -> None:
    assert difference(OLD | change, OLD) == expected
    nested = difference({"text_config": OLD | change}, {"text_config": OLD})
    assert nested == (expected and (f"text_config.{expected[0]}", *expected[1:]))
