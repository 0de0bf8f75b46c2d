"""The tensors of model folders: complete safetensors files in float32, and everything that has to lie beside them."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from services.trainer.distributed import Shares
from services.trainer.weight_folders import atomic_folder
from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error
from triforge.store.manifests import MANIFEST, write_manifest

TENSORS, PROBE = "model.safetensors", "probe.json"
_Convert = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
_COPIED = {".json", ".jinja", ".txt", ".model", ".tiktoken"}


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document that people read as well."""
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def copy_companions(source: Path, target: Path) -> None:
    """Copy config, tokenizer and chat template, everything of a model folder but its weights and what proves them."""
    for path in sorted(source.iterdir()):
        index = path.name.endswith(".index.json")
        if (
            path.is_file()
            and path.suffix in _COPIED
            and path.name not in (MANIFEST, PROBE)
            and not index
        ):
            shutil.copyfile(path, target / path.name)


def write_probe(folder: Path, probe: Mapping[str, Any]) -> None:
    """Write what shows that an engine holds a version, if there is anything to tell by: `ids`, and all `logprobs` but the first."""
    if probe.get("logprobs") and all(map(math.isfinite, probe["logprobs"])):
        (folder / PROBE).write_text(json.dumps(probe) + "\n")


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same, float32."""
    return {name: _plain(tensor) for name, tensor in tensors.items()}


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).contiguous()


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name (tied ones once) and persistent buffers, as they lie on this rank."""
    persistent = set(model.state_dict())
    buffers = {name: b for name, b in model.named_buffers() if name in persistent}
    return {name: t.detach() for name, t in (dict(model.named_parameters()) | buffers).items()}


def in_folder(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a model as they stand in a folder: other ones where transformers converted those that it read."""
    if not getattr(model, "_weight_conversions", None):
        return dict(tensors)
    apart = revert_weight_conversion(cast("PreTrainedModel", model), dict(tensors))
    return {name: tensor.clone() for name, tensor in apart.items()}  # no two in one storage


def publish_model(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    source: Path,
    target: Path,
    about: Mapping[str, Any],
    *,
    replace: bool = False,
    probe: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Write a complete model folder, atomically: weights of `model`, and the companions of `source`; returns the manifest's digest.

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
        save_tensors(weights, folder / TENSORS, partial(in_folder, model))
        write_probe(folder, probe)
        return write_manifest(folder, about)


def save_tensors(tensors: Mapping[str, Tensor], path: Path, convert: _Convert = dict) -> None:
    """Write a safetensors file of what `convert` makes of the tensors. Raises OSError: disk full or no permission."""
    if isinstance(tensors, Shares):
        return _save_gathered(tensors, path, convert)
    try:
        save_file(convert(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _save_gathered(tensors: Shares, path: Path, convert: _Convert) -> None:
    """The same file, float32, for which only one tensor is whole at a time: safetensors wants to be given all of them."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for whole, share in tensors.items():
        for name, part in convert({whole: torch.empty(share.shape, device="meta")}).items():
            start, end = end, end + torch.float32.itemsize * part.numel()
            header[name] = {"dtype": "F32", "shape": [*part.shape], "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file, contextlib.closing(tensors.gathered()) as gathered:
        file.write(len(text).to_bytes(8, "little") + text)
        for whole, tensor in zip(tensors, gathered, strict=True):
            for part in convert({whole: tensor}).values():
                file.write(_plain(part).numpy().data)


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
