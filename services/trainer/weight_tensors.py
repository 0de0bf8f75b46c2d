"""The tensors of model folders: complete safetensors files in float32, and everything that has to lie beside them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from services.trainer.distributed import whole
from services.trainer.weight_folders import atomic_folder
from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error
from triforge.store.manifests import MANIFEST, write_manifest

TENSORS = "model.safetensors"
_COPIED = {".json", ".jinja", ".txt", ".model", ".tiktoken"}


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document that people read as well."""
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def copy_companions(source: Path, target: Path) -> None:
    """Copy config, tokenizer and chat template, everything of a model folder but its weights."""
    for path in sorted(source.iterdir()):
        index = path.name.endswith(".index.json")
        if path.is_file() and path.suffix in _COPIED and path.name != MANIFEST and not index:
            shutil.copyfile(path, target / path.name)


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors, float32. All ranks have to ask together."""
    return {
        name: whole(tensor.detach()).to("cpu", torch.float32).contiguous()
        for name, tensor in tensors.items()
    }


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name (tied ones once) and persistent buffers, float32 on the CPU. All ranks have to ask together."""
    persistent = set(model.state_dict())
    buffers = {name: b for name, b in model.named_buffers() if name in persistent}
    return on_cpu(dict(model.named_parameters()) | buffers)


def publish_model(
    weights: Mapping[str, Tensor],
    source: Path,
    target: Path,
    about: Mapping[str, Any],
    *,
    replace: bool = False,
) -> str:
    """Write a complete model folder, atomically: weights, and the companions of `source`; returns the manifest's digest.

    Raises:
        WeightsError: the folder exists and is not to be replaced.
        StorageError: disk full or no permission.
    """
    with atomic_folder(target, replace=replace) as folder:
        copy_companions(source, folder)
        config = json.loads((folder / "config.json").read_text())
        config["dtype"] = "float32"
        if "torch_dtype" in config:
            config["torch_dtype"] = "float32"
        write_json(folder / "config.json", config)
        save_tensors(weights, folder / TENSORS)
        return write_manifest(folder, about)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file. Raises OSError: disk full or no permission."""
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        WeightsError: it is missing, truncated or not a safetensors file.
        StorageError: the disk or the network failed; the file may be whole.
    """
    try:
        return dict(load_file(path))
    except (SafetensorError, FileNotFoundError) as error:
        raise WeightsError(f"{path}: cannot be read as safetensors: {error}") from error
    except OSError as error:
        raise storage_error("read", str(path), error) from error
