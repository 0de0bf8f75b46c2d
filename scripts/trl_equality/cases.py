"""Cases for both sides: a tiny model, a batch, and the variants of the loss. Knows neither side.

Weights and batch are drawn by NumPy's generator, whose numbers do not change between versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""Of a Qwen2 model."""

LENGTHS = ((3, 5), (5, 1), (2, 7), (4, 4))
"""Tokens of each prompt and of its completion."""

MAX_COMPLETION = 9
ADVANTAGES = (1.2, -0.7, 0.4, -1.5)
CLIP = {"low": 0.2, "high": 0.28}

CASES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo"},
    "bnpo": {"loss_type": "bnpo"},
    "cispo": {"loss_type": "cispo"},
    "sapo": {"loss_type": "sapo"},
    "grpo_sequence": {"level": "sequence"},
    "dapo_sequence": {"loss_type": "dapo", "level": "sequence"},
    "dr_grpo_sequence": {"loss_type": "dr_grpo", "level": "sequence"},
    "grpo_kl": {"beta": 0.04},
    "grpo_kl_weighted": {"beta": 0.04, "weighted": True},
    "grpo_sequence_kl_weighted": {"beta": 0.04, "weighted": True, "level": "sequence"},
    "dapo_entropy": {"loss_type": "dapo", "entropy": 0.05},
    "grpo_masked": {"opsm": 0.05},
    "grpo_warm": {"temperature": 0.7},
    "grpo_on_policy": {"on_policy": True},
    "cispo_on_policy": {"loss_type": "cispo", "on_policy": True},
}
"""By name: TRL's `loss_type` (grpo), `importance_sampling_level` (token), `beta` with
`use_bias_correction_kl`, `entropy_coef`, `off_policy_mask_threshold`, and the sampling temperature (1). On policy the old
log-probabilities are the model's own."""


def weight(name: str, shape: tuple[int, ...], *, reference: bool = False) -> np.ndarray:
    """Return a parameter's values, float32, fixed by its name; those of the reference model are others."""
    draw = np.random.default_rng([sum(ord(c) * (i + 1) for i, c in enumerate(name)), reference])
    values = draw.normal(0.0, 0.5, shape)
    return (1.0 + 0.1 * values if "norm" in name else values).astype(np.float32)


def batch() -> list[dict[str, Any]]:
    """One entry a sequence: `prompt` and `completion` ids, `old` log-probabilities, `advantage`."""
    draw = np.random.default_rng(11)
    found = []
    for (prompt, completion), advantage in zip(LENGTHS, ADVANTAGES, strict=True):
        found.append(
            {
                "prompt": draw.integers(3, 20, prompt).tolist(),
                "completion": draw.integers(3, 20, completion).tolist(),
                "old": (-3.0 + 0.5 * draw.normal(size=completion)).astype(np.float32).tolist(),
                "advantage": advantage,
            }
        )
    return found
