"""The presets as plain data: what each sets over the defaults of the core, of its estimator and of its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triforge.errors import ConfigError
from triforge.methods import find, known, preset_owner

# Outcomes only: no votes, no judge.
OUTCOME: dict[str, Any] = {
    "use_votes": False,
    "train_reward_model": False,
    "estimator": "group",
    "std_floor": 0.0,
    "std_eps": 1e-6,
}
BINARY: dict[str, Any] = {**OUTCOME, "outcome": "binary"}
# Nothing is compared; a critic's values are the baseline.
CRITIC: dict[str, Any] = {
    **BINARY,
    "estimator": "gae",
    "normalise": "raw",
    "whiten": True,
    "value_clip": 0.2,
    "aggregation": "token_mean",
}
HIGHER: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28}  # the upper side is wider
CHARGED: dict[str, Any] = {"kl_estimator": "k1", "kl_placement": "reward"}

PRESETS: dict[str, dict[str, Any]] = {
    "rlanything_paper": {
        "std_floor": 0.0,
        "lone_step": "raw",
        "vote_scope": "step",
        "drop_unanimous": True,
        "invalid_votes": "pooled",
        "reinforce_unrewarded_votes": True,
        "bands": "stacked",
        "acceptance": "paper",
        "train_on_pairs": "none",
        "kl_reference": "step_start",
        "kl_clamp": None,
    },
    "rlanything": {},
    "grpo": {**OUTCOME},
    "dr_grpo": {**BINARY, "normalise": "mean", "kl_beta": 0.0, "aggregation": "step_sum"},
    "dapo": {
        **OUTCOME,
        **HIGHER,
        "kl_beta": 0.0,
        "aggregation": "token_mean",
        "mixed_groups_only": True,
        "refills": 10,
        "overlong_limit": 20480,
        "overlong_buffer": 4096,
    },
    "gspo": {**OUTCOME, "loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "kl_beta": 0.0},
    "cispo": {
        **OUTCOME,
        "loss": "cispo",
        "clip_low": 1.0,
        "clip_high": 0.28,
        "kl_beta": 0.0,
        "aggregation": "token_mean",
    },
    "rloo": {**BINARY, "normalise": "others", "kl_beta": 0.0},
    "reinforce_pp": {
        **BINARY,
        "normalise": "raw",
        "whiten": True,
        **CHARGED,
        "aggregation": "token_mean",
    },
    "reinforce_pp_baseline": {
        **BINARY,
        "normalise": "mean",
        "whiten": True,
        "kl_estimator": "k2",
        "aggregation": "token_mean",
    },
    "ppo": {**CRITIC, **CHARGED},
    "ppo_bilevel": {**CRITIC, **CHARGED, "estimator": "bilevel_gae", "turn_gamma": 0.95},
    "gigpo": {**BINARY, "estimator": "gigpo", "gamma": 0.95},
    "maxrl": {**BINARY, "normalise": "relative", "kl_beta": 0.0},
}


def preset_names() -> list[str]:
    """Return the names of all presets, those of the installed methods included, sorted."""
    return sorted({*PRESETS, *(name for method in known() for name in find(method).presets)})


def preset_of(name: str) -> Mapping[str, Any]:
    """Return what a preset sets over the defaults.

    Raises:
        ConfigError: neither the core nor an installed method has it.
    """
    if name in PRESETS:
        return PRESETS[name]
    owner = preset_owner(name)
    if owner is None:
        raise ConfigError(f"preset: given {name!r}, allowed one of {preset_names()}")
    return owner.presets[name]
