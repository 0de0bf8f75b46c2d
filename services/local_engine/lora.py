"""Low-rank adapters (Hu et al., 2021) that are added to single requests while they run.

A layer's output W·x becomes W·x + scale·B·(A·x). The weights themselves stay unchanged, so requests with different adapters, and
without one, are computed in one batch.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from triforge.chat_template import read_json
from triforge.errors import WeightsError

# Settings of PEFT's adapter_config.json that would need another arithmetic, with the values that do not.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "bias": (None, "none"), "use_dora": (None, False), "modules_to_save": (None, []), "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}), "fan_in_fan_out": (None, False), "peft_type": (None, "LORA"),
    "layers_to_transform": (None, []), "lora_bias": (None, False),
}  # fmt: skip
_PREFIX = "base_model.model."


class Adapter:
    """One adapter. `parts`: name of the adapted weight -> A [rank, in] and B [out, rank], the scale in B."""

    _numbers = itertools.count(1)

    def __init__(self, path: Path, parts: dict[str, tuple[Tensor, Tensor]]) -> None:
        self.path = path
        self.number = next(self._numbers)  # separates its entries in the prefix cache
        self._parts = parts

    def add(self, name: str, source: Tensor, target: Tensor, tokens: Tensor) -> None:
        """Add B·A·source to `target` [N, out], in place, for the rows `tokens`; `source` is [N, in]."""
        part = self._parts.get(name)
        if part is not None:
            narrow, wide = part
            target.index_add_(0, tokens, source.index_select(0, tokens) @ narrow.t() @ wide.t())


def tokens_of_adapters(
    rows: list[Adapter | None], counts: list[int], device: torch.device | None = None
) -> list[tuple[Adapter, Tensor]]:
    """Return each adapter with the places of its tokens, when row r has `counts[r]` tokens and they lie row by row."""
    places: dict[Adapter, list[int]] = {}
    start = 0
    for adapter, count in zip(rows, counts, strict=True):
        if adapter is not None:
            places.setdefault(adapter, []).extend(range(start, start + count))
        start += count
    return [(a, torch.tensor(tokens, device=device)) for a, tokens in places.items() if tokens]


def read_adapter(
    folder: Path, shapes: dict[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype
) -> Adapter:
    """Read and verify an adapter in PEFT's format for a model whose weights have these shapes."""
    config, file = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    settings = read_json(config)
    if not settings:
        raise WeightsError(f"{config} does not exist; expected an adapter folder")
    for key, plain in _PLAIN.items():
        if settings.get(key) not in plain:
            raise WeightsError(f"{config}: {key} is {settings[key]!r}, which is not supported")
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, (int, float)):
        raise WeightsError(f"{config}: r is {rank!r} and lora_alpha {alpha!r}; expected numbers")
    scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{file} cannot be read: {error}") from error
    parts: dict[str, tuple[Tensor, Tensor]] = {}
    for name in tensors:
        stem, _, kind = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        weight = f"{stem}.weight"
        if kind not in ("lora_A", "lora_B") or ".layers." not in weight or weight not in shapes:
            raise WeightsError(f"{file}: tensor {name} adapts no layer of the model that is served")
        if kind == "lora_A":
            wide, narrow = shapes[weight]
            a = _checked(tensors, name, (rank, narrow), file)
            b = _checked(tensors, name.replace("lora_A", "lora_B"), (wide, rank), file)
            parts[weight] = a.to(device, dtype), (b.to(torch.float32) * scale).to(device, dtype)
    if not parts:
        raise WeightsError(f"{file} holds no adapter")
    return Adapter(folder, parts)


def _checked(tensors: dict[str, Tensor], name: str, shape: tuple[int, int], file: Path) -> Tensor:
    tensor, what = tensors.get(name), f"{file}: tensor {name}"
    if tensor is None:
        raise WeightsError(f"{what} is missing")
    if tuple(tensor.shape) != shape:
        raise WeightsError(f"{what} has shape {list(tensor.shape)}, expected {list(shape)}")
    if not bool(torch.isfinite(tensor).all()):
        raise WeightsError(f"{what} holds values that are not finite")
    return tensor
