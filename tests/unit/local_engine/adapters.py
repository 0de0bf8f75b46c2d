"""Small random adapters in PEFT's format, and folders into which they were merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.unit.local_engine.models import edit_weights

MODULES = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
)  # fmt: skip


def build_adapter(
    folder: Path, base: Path, *, seed: int = 0, modules: tuple[str, ...] = MODULES, **more: Any
) -> Path:
    targets = [module.rpartition(".")[2] for module in modules]  # vLLM asks for them
    settings = {
        "peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none", "target_modules": targets, **more
    }  # fmt: skip
    made = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in load_file(base / "model.safetensors").items():
        if name.split(".", 3)[-1].removesuffix(".weight") in modules:
            stem = "base_model.model." + name.removesuffix("weight")
            wide, narrow = weight.shape
            tensors[stem + "lora_A.weight"] = torch.randn(3, narrow, generator=made) / 4
            tensors[stem + "lora_B.weight"] = torch.randn(wide, 3, generator=made) / 4
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def merge(base: Path, adapter: Path, target: Path, scale: float = 2.0) -> Path:
    """The base with W + scale * B A in place of each adapted W; 2 is alpha / r of `build_adapter`."""
    found = load_file(adapter / "adapter_model.safetensors")

    def change(tensors: dict[str, Any]) -> None:
        for name in [n for n in found if "lora_A" in n]:
            weight = name.removeprefix("base_model.model.").replace("lora_A.", "")
            tensors[weight] += scale * found[name.replace("lora_A", "lora_B")] @ found[name]

    return edit_weights(base, target, change)
