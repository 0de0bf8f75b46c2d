"""Weight versions on disk: one complete model folder a version, written aside, checked by a manifest, never changed.

<artifacts>/weights/<run>/<role>/v000012/
config.json, tokenizer files, chat template     copied from the run's initial folder
model.safetensors                               float32
manifest.json                                   see `folders`
"""

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


def copy_companions(source: Path, target: Path) -> None:
    """Copy config, tokenizer and chat template, everything of a model folder but its weights."""
    for path in sorted(source.iterdir()):
        index = path.name.endswith(".index.json")
        if path.is_file() and path.suffix in _COPIED and path.name != MANIFEST and not index:
            shutil.copyfile(path, target / path.name)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The tensors to store: parameters by name (tied ones once) and persistent buffers, float32 on the CPU.

    Of a sharded model every rank has to ask for them.
    """
    named: dict[str, Tensor] = dict(model.named_parameters())
    persistent = set(model.state_dict())
    named |= {name: tensor for name, tensor in model.named_buffers() if name in persistent}
    return {
        name: whole(tensor.detach()).to("cpu", torch.float32).contiguous()
        for name, tensor in named.items()
    }


def write_model(weights: Mapping[str, Tensor], source: Path, folder: Path) -> None:
    """Fill `folder` with a complete model folder: companions of `source`, and weights in float32."""
    copy_companions(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "float32"
    if "torch_dtype" in config:
        config["torch_dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_tensors(weights, folder / TENSORS)


def publish_model(
    model: nn.Module,
    source: Path,
    target: Path,
    about: Mapping[str, Any],
    *,
    replace: bool = False,
    weights: Mapping[str, Tensor] | None = None,
) -> str:
    """Write a complete model folder with its manifest, atomically; returns the manifest's digest.

    Args:
        model: its weights are written.
        source: folder of the companions.
        target: the folder.
        about: fields of the manifest.
        replace: overwrite a folder that exists.
        weights: those of a sharded model, gathered before.

    Raises:
        WeightsError: the folder exists and is not to be replaced.
        StorageError: disk full or no permission.
    """
    with atomic_folder(target, replace=replace) as folder:
        write_model(whole_weights(model) if weights is None else weights, source, folder)
        return write_manifest(folder, about)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: disk full or no permission.
    """
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
