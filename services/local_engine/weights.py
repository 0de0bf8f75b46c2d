"""A model of the engine: a forward pass over the slot cache, and weights by name that can be swapped.

Weights are checked whole before anything of them is used. Every error names the file or the tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from services.local_engine.kv_cache import SlotCache, StepBatch
from services.local_engine.lora import Adapter
from triforge.errors import WeightsError
from triforge.store.tensor_files import weight_files
from triforge.vision.image_spec import ImageSpec


class Model(ABC):
    """A model under the tensor names of its folder; `twins` are further names of some weights.

    Weights, keys and values are of `dtype`, on the device that was torch's default when the model was made. `vision` is how it
    sees images, if it does.
    """

    vocab_size: int
    context_length: int
    vision: ImageSpec | None = None

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.device = dtype, torch.get_default_device()
        self.weights: dict[str, Tensor] = {}
        self.twins: dict[str, str] = {}

    @abstractmethod
    def new_cache(self) -> SlotCache:
        """Return an empty cache of the right shape."""

    @abstractmethod
    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        """Return the logits [M, vocab] of the wanted tokens, and write keys and values to the cache; `batch.check` may halt it."""

    def read_adapter(self, folder: Path) -> Adapter:
        """Read and verify an adapter."""
        raise WeightsError(
            f"adapter {folder}: the local engine adds adapters to models of the Llama family only"
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of the weights."""
        return {name: tuple(tensor.shape) for name, tensor in self.weights.items()}

    def converted(self, tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:  # noqa: ARG002 (for others)
        """Return the tensors of a folder under the model's own names; an error names `where`."""
        return tensors

    def checked(
        self, tensors: dict[str, Tensor], where: str, *, some: bool = False
    ) -> dict[str, Tensor]:
        """Check all weights of the model, or `some` of them; an error names `where`."""
        shapes = self.shapes()
        if some:
            shapes = {name: shape for name, shape in shapes.items() if name in tensors}
        for twin, name in self.twins.items():
            given = tensors.get(twin)
            if given is None:
                continue
            held = tensors.get(name)
            if held is None and some:  # of a broadcast that sends the matrix under its other name
                tensors, shapes = tensors | {name: given}, shapes | {name: self.shapes()[name]}
            elif held is not None and not (held.dtype == given.dtype and torch.equal(held, given)):
                raise WeightsError(
                    f"{where}: {twin} has other values than {name}, expected the same: the model that is served has one matrix "
                    "for both (tie_word_embeddings)"
                )
        return check_tensors(tensors, shapes, self.twins, where)

    def staged(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Bring checked weights to the device, if it is another than the CPU and has room, so that `apply` takes no time."""
        if self.device.type == "cpu":
            return tensors
        try:
            # Moved first: a thread of the CPU would take longer to round than the bus takes for twice the bytes.
            return {name: t.to(self.device).to(self.dtype) for name, t in tensors.items()}
        except torch.OutOfMemoryError:  # `apply` moves them
            return {name: t.to(self.dtype) for name, t in tensors.items()}

    @torch.inference_mode()
    def apply(self, tensors: dict[str, Tensor]) -> None:
        """Copy checked weights in, all or some."""
        for name, tensor in tensors.items():
            self.weights[name].copy_(tensor)

    def tensor(self, name: str) -> Tensor:
        """Return one weight that serves now; may be a view."""
        tensor = self.weights.get(self.twins.get(name, name))
        if tensor is None:
            raise WeightsError(f"tensor {name!r} is unknown to the model that is served")
        return tensor


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder into memory of their own: the file behind a mapping may change before they are used."""
    tensors: dict[str, Tensor] = {}
    files = weight_files(folder)
    if not files:
        raise WeightsError(f"weight folder {folder} does not exist, or holds no safetensors file")
    for file in files:
        try:
            with safe_open(str(file), framework="pt", device="cpu") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dict
                    if name in tensors:
                        raise WeightsError(f"tensor {name} is stored twice, again in {file}")
                    tensors[name] = opened.get_tensor(name).clone()
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{file} cannot be read (truncated?): {error}") from error
    return tensors


def check_tensors(
    tensors: dict[str, Tensor],
    shapes: dict[str, tuple[int, ...]],
    ignored: Iterable[str],
    where: str,
) -> dict[str, Tensor]:
    """Check and return the tensors that `shapes` names; others than those and the `ignored` are refused."""
    missing = sorted(set(shapes) - set(tensors))
    if missing:
        raise WeightsError(f"{where}: tensor {missing[0]} is missing ({len(missing)} in all)")
    extra = set(tensors) - set(shapes) - set(ignored)
    unknown = sorted(name for name in extra if not name.endswith("rotary_emb.inv_freq"))
    if unknown:
        raise WeightsError(f"{where}: tensor {unknown[0]} is unknown to the model that is served")
    for name, shape in shapes.items():
        tensor, what = tensors[name], f"{where}: tensor {name}"
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"{what} has shape {list(tensor.shape)}, expected {list(shape)}")
        if not tensor.is_floating_point():
            raise WeightsError(f"{what} is of type {tensor.dtype}, expected floating point")
        # One value that is not finite makes the sum so; only then are all values looked at.
        if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"{what} holds values that are not finite")
    return {name: tensors[name] for name in shapes}
