"""Weights by name: read from a folder, checked whole before anything is used, and held by a model.

Every error names the file or the tensor, because it is read by whoever wrote the folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from services.local_engine.lora import Adapter
from triforge.chat_template import read_json
from triforge.errors import WeightsError
from triforge.store.model_config import difference
from triforge.store.tensor_files import weight_files


class NamedWeights:
    """The weights of a model under the names of a folder; `twins` are further names of some.

    They lie on the device that was torch's default when the model was made, in `dtype`.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.device = dtype, torch.get_default_device()
        self.weights: dict[str, Tensor] = {}
        self.twins: dict[str, str] = {}

    def expected(self) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
        return {n: tuple(t.shape) for n, t in self.weights.items()}, frozenset(self.twins)

    def converted(self, tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:  # noqa: ARG002 (for others)
        return tensors

    def staged(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.device.type == "cpu":
            return tensors
        try:
            # Across first: a thread of the CPU would take longer to round than the bus takes for twice the bytes.
            return {name: t.to(self.device).to(self.dtype) for name, t in tensors.items()}
        except torch.OutOfMemoryError:  # then the swap itself takes them across
            return {name: t.to(self.dtype) for name, t in tensors.items()}

    @torch.inference_mode()
    def apply(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.weights[name].copy_(tensor)

    def read_adapter(self, folder: Path) -> Adapter:
        raise WeightsError(
            f"adapter {folder}: the local engine adds adapters to models of the Llama family only"
        )

    def tensor(self, name: str) -> Tensor:
        found = self.weights.get(self.twins.get(name, name))
        if found is None:
            raise WeightsError(f"tensor {name!r} is unknown to the model that is served")
        return found


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder as they are stored, in memory of their own: the file behind a mapping may change before they are used."""
    found: dict[str, Tensor] = {}
    files = weight_files(folder)
    if not files:
        raise WeightsError(f"weight folder {folder} does not exist, or holds no safetensors file")
    for file in files:
        try:
            with safe_open(str(file), framework="pt", device="cpu") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dict
                    if name in found:
                        raise WeightsError(f"tensor {name} is stored twice, again in {file}")
                    found[name] = opened.get_tensor(name).clone()
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{file} cannot be read (truncated?): {error}") from error
    return found


def check_tensors(
    found: dict[str, Tensor], shapes: dict[str, tuple[int, ...]], ignored: Iterable[str], where: str
) -> dict[str, Tensor]:
    """The tensors that `shapes` asks for, after all of them were checked."""
    missing = sorted(set(shapes) - set(found))
    if missing:
        raise WeightsError(f"{where}: tensor {missing[0]} is missing ({len(missing)} in all)")
    skip = set(ignored)
    unknown = sorted(
        n for n in set(found) - set(shapes) - skip if not n.endswith("rotary_emb.inv_freq")
    )
    if unknown:
        raise WeightsError(f"{where}: tensor {unknown[0]} is unknown to the model that is served")
    for name, shape in shapes.items():
        tensor, what = found[name], f"{where}: tensor {name}"
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"{what} has shape {list(tensor.shape)}, expected {list(shape)}")
        if not tensor.is_floating_point():
            raise WeightsError(f"{what} is of type {tensor.dtype}, expected floating point")
        # One value that is not finite makes the sum so; only if the sum is not are all values looked at.
        if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"{what} holds values that are not finite")
    return {name: found[name] for name in shapes}


def check_config(served: dict[str, Any], folder: Path) -> None:
    """Refuse a folder whose `config.json` describes another forward pass than the one that is served."""
    changed = difference(read_json(folder / "config.json"), served)
    if changed is not None:
        field, given, expected = changed
        raise WeightsError(
            f"{folder / 'config.json'}: {field} is {given!r:.80}, the served model has {expected!r:.80}"
        )
