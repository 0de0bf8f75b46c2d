"""Models behind one small interface: a forward pass over the slot cache, and weights that can be swapped."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from services.local_engine.kv_cache import SlotCache, StepBatch
from services.local_engine.llama import LlamaModel, LlamaShape
from services.local_engine.lora import Adapter
from services.local_engine.weights import check_config, check_tensors, read_tensors
from triforge.chat_template import read_json
from triforge.errors import ConfigError, WeightsError
from triforge.store.model_config import demand_known
from triforge.store.tensor_files import demand_layers, demand_numbers, read_folder
from triforge.vision.image_spec import ImageSpec

_M = TypeVar("_M", bound="Model")
_CPU = torch.device("cpu")


class Model(Protocol):
    """What the scheduler needs of a model. `vision` says how it sees images, if it does.

    Weights, keys and values are of `dtype` and lie on `device`.
    """

    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    context_length: int
    vision: ImageSpec | None

    def new_cache(self) -> SlotCache:
        """An empty cache of the right shape."""

    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        """Logits [M, vocab] of the wanted tokens; keys and values go to the cache. Halted if `batch.check` says so."""

    def expected(self) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
        """Names and shapes of the weights, and the names that may be there and are ignored."""

    def converted(self, tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
        """All tensors of a folder, under the names of `expected`; WeightsError, which names `where`, if they are of another model."""

    def staged(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Verified weights where `apply` takes them from in no time: on the device, if it is another than the CPU and has room."""

    def apply(self, tensors: dict[str, Tensor]) -> None:
        """Copy verified weights in, all or some."""

    def read_adapter(self, folder: Path) -> Adapter:
        """An adapter of a folder, verified for this model. WeightsError: the model takes none, or not this one."""

    def tensor(self, name: str) -> Tensor:
        """One weight that serves now; may be a view. WeightsError if there is none of this name."""


def load_model(
    folder: Path,
    *,
    own_llama: bool = True,
    device: torch.device = _CPU,
    dtype: torch.dtype = torch.float32,
) -> tuple[Model, dict[str, Any]]:
    """The model of a folder with its weights loaded, and its config; `llama.py` is used where it fits and `own_llama`."""
    config = read_json(folder / "config.json")
    if not config:
        raise WeightsError(f"{folder / 'config.json'} does not exist; expected a model folder")
    held = read_folder(folder)
    if not held:
        raise WeightsError(f"weight folder {folder} holds no safetensors file")
    demand_layers(folder, config, len(held))
    numbers = sum(math.prod(entry.shape) for entry in held.values())
    try:
        shape = LlamaShape.from_config(config) if own_llama else None
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise WeightsError(f"{folder / 'config.json'}: not of a Llama: {error!r}") from error
    if shape is not None:
        own = _build(folder, numbers, partial(LlamaModel, shape, dtype), device)
        own.apply(read_weights(folder, own, config))
        return own, config
    demand_known(folder, config)
    # transformers takes seconds to import and the common case does not need it.
    module = importlib.import_module("services.local_engine.hf_model")
    vision = ImageSpec.of_folder(folder)
    kind = partial(module.VisionModel, vision=vision) if vision else module.TransformersModel
    other = _build(folder, numbers, partial(kind, config, dtype=dtype), device)
    other.apply(read_weights(folder, other, config))
    other.check_cache()
    return other, config


def place(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """Where to serve and in which type, from `--device` and `--dtype`. Raises ConfigError: there is no such device."""
    here = torch.cuda.is_available()
    try:
        chosen = torch.device(("cuda" if here else "cpu") if device == "auto" else device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"--device: given {device!r}, expected auto, cpu, or a GPU that torch {torch.__version__} sees "
            f"({torch.cuda.device_count()} here): {str(error).partition(chr(10))[0]}"
        ) from error
    if dtype == "auto":
        dtype = "float32" if chosen.type == "cpu" else "bfloat16"
    return chosen, torch.float32 if dtype == "float32" else torch.bfloat16


def _build(folder: Path, held: int, build: Callable[[], _M], device: torch.device) -> _M:
    """A model for a folder that holds so many weights; its shapes are looked at before memory is taken for them."""
    try:
        with torch.device("meta"):
            shapes, _ = build().expected()
        demand_numbers(folder, sum(map(math.prod, shapes.values())), held)
        with device:
            return build()
    except RuntimeError as error:
        raise WeightsError(f"{folder / 'config.json'}: no model can be built: {error}") from error


def stage_weights(folder: Path, model: Model, config: dict[str, Any]) -> dict[str, Tensor]:
    """Read and verify the weights of a folder without touching the model, and have them ready for a swap."""
    return model.staged(read_weights(folder, model, config))


def read_weights(folder: Path, model: Model, config: dict[str, Any]) -> dict[str, Tensor]:
    """The verified weights of a folder for a model, on the CPU."""
    tensors = read_tensors(folder)
    check_config(config, folder)
    shapes, ignored = model.expected()
    return check_tensors(model.converted(tensors, str(folder)), shapes, ignored, str(folder))


def stage_tensors(tensors: dict[str, Tensor], model: Model, where: str) -> dict[str, Tensor]:
    """Verify some of a model's tensors, given by name, and bring them to float32; `where` is named in errors."""
    shapes, ignored = model.expected()
    known = {name: shape for name, shape in shapes.items() if name in tensors}
    real = {
        name: tensor.to(torch.float32) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    return model.staged(check_tensors(real, known, ignored, where))
