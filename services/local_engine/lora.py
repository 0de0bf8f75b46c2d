"""Low-rank adapters (Hu et al., 2021) that are added to single requests while they run.

A layer's output W·x becomes W·x + scale·B·(A·x). The weights themselves stay as they are, so requests with different
adapters, and without one, are computed side by side.
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
    """Each adapter with the places of its tokens, when row r has `counts[r]` tokens and they lie row by row."""
    places: dict[Adapter, list[int]] = {}
    start = 0
    for adapter, count in zip(rows, counts, strict=True):
        if adapter is not None:
            places.setdefault(adapter, []).extend(range(start, start + count))
        start += count
    return [(a, torch.tensor(found, device=device)) for a, found in places.items() if found]


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
    parts = _parts(tensors, shapes, rank, scale, str(file))
    return Adapter(
        folder, {n: (a.to(device, dtype), b.to(device, dtype)) for n, (a, b) in parts.items()}
    )


def _parts(
    tensors: dict[str, Tensor],
    shapes: dict[str, tuple[int, ...]],
    rank: int,
    scale: float,
    where: str,
) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name in tensors:
        stem, _, kind = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        weight = f"{stem}.weight"
        if kind not in ("lora_A", "lora_B") or ".layers." not in weight or weight not in shapes:
            raise WeightsError(
                f"{where}: tensor {name} adapts no layer of the model that is served"
            )
        if kind == "lora_B":
            continue
        other = tensors.get(name.replace("lora_A", "lora_B"))
        if other is None:
            raise WeightsError(f"{where}: tensor {name} has no lora_B beside it")
        wide, narrow = shapes[weight]
        _check(tensors[name], (rank, narrow), f"{where}: lora_A of {weight}")
        _check(other, (wide, rank), f"{where}: lora_B of {weight}")
        found[weight] = tensors[name].to(torch.float32), other.to(torch.float32) * scale
    if not found:
        raise WeightsError(f"{where} holds no adapter")
    return found


def _check(tensor: Tensor, shape: tuple[int, int], what: str) -> None:
    if tuple(tensor.shape) != shape:
        raise WeightsError(f"{what} has shape {list(tensor.shape)}, expected {list(shape)}")
    if not bool(torch.isfinite(tensor).all()):
        raise WeightsError(f"{what} holds values that are not finite")
