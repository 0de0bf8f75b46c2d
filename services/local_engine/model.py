"""Models from folders, and further weights for them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.local_engine.llama import LlamaModel, LlamaShape
from services.local_engine.weights import Model, read_tensors
from triforge.chat_template import read_json
from triforge.errors import ConfigError, WeightsError
from triforge.store.model_config import demand_head, demand_known, difference
from triforge.store.tensor_files import demand_layers, demand_numbers, read_folder
from triforge.vision.image_spec import ImageSpec

_CPU = torch.device("cpu")


def load_model(
    folder: Path,
    *,
    own_llama: bool = True,
    device: torch.device = _CPU,
    dtype: torch.dtype = torch.float32,
) -> tuple[Model, dict[str, Any]]:
    """Load the model of a folder and its config; `llama.py` is used where it fits and `own_llama`."""
    config = read_json(folder / "config.json")
    if not config:
        raise WeightsError(f"{folder / 'config.json'} does not exist; expected a model folder")
    entries = read_folder(folder)
    if not entries:
        raise WeightsError(f"weight folder {folder} holds no safetensors file")
    demand_layers(folder, config, len(entries))
    demand_head(folder, config, entries)
    try:
        shape = LlamaShape.from_config(config) if own_llama else None
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise WeightsError(f"{folder / 'config.json'}: not of a Llama: {error!r}") from error
    build: Callable[[], Model]
    module: Any = None
    if shape is not None:
        build = partial(LlamaModel, shape, dtype)
    else:
        demand_known(folder, config)
        # transformers takes seconds to import and the common case does not need it.
        module = importlib.import_module("services.local_engine.hf_model")
        vision = ImageSpec.of_folder(folder)
        kind = partial(module.VisionModel, vision=vision) if vision else module.TransformersModel
        build = partial(kind, config, dtype=dtype)
    numbers = sum(math.prod(entry.shape) for entry in entries.values())
    try:
        with torch.device("meta"):  # looks at the shapes before it takes memory for them
            shapes = build().shapes()
        demand_numbers(folder, sum(map(math.prod, shapes.values())), numbers)
        with device:
            model = build()
    except RuntimeError as error:
        raise WeightsError(f"{folder / 'config.json'}: no model can be built: {error}") from error
    model.apply(_read_weights(folder, model, config))
    if shape is None:
        module.TransformersModel.check_cache(model)
    return model, config


def place(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """Return where to serve and in which type, from `--device` and `--dtype`. Raises ConfigError: there is no such device."""
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


def stage_weights(folder: Path, model: Model, config: dict[str, Any]) -> dict[str, Tensor]:
    """Read and check the weights of a folder without touching the model, and have them ready for a swap."""
    return model.staged(_read_weights(folder, model, config))


def _read_weights(folder: Path, model: Model, config: dict[str, Any]) -> dict[str, Tensor]:
    tensors = read_tensors(folder)
    changed = difference(read_json(folder / "config.json"), config)
    if changed is not None:
        field, value, expected = changed
        raise WeightsError(
            f"{folder / 'config.json'}: {field} is {value!r:.80}, the served model has {expected!r:.80}"
        )
    return model.checked(model.converted(tensors, str(folder)), str(folder))


def stage_tensors(tensors: dict[str, Tensor], model: Model, where: str) -> dict[str, Tensor]:
    """Check some of a model's tensors, given by name, and bring them to float32; an error names `where`."""
    wide = {
        name: tensor.to(torch.float32) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    return model.staged(model.checked(wide, where, some=True))
