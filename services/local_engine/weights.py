"""Weight folders: everything is read and checked before anything is used.

A folder holds `model.safetensors`, or the shards that `model.safetensors.index.json` names. Every error names the file
or the tensor, because it is read by whoever wrote the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from triforge.errors import WeightsError

# Fields that change the forward pass without changing the shape of any tensor.
_SAME = ("model_type", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
         "tie_word_embeddings", "hidden_act", "rope_theta", "rope_scaling", "rope_parameters")  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} when the file does not exist."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightsError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds a {type(found).__name__}; expected a JSON object")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder."""
    if not folder.is_dir():
        raise WeightsError(f"weight folder {folder} does not exist")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise WeightsError(f"{index} has no weight_map")
        files = [folder / str(name) for name in sorted(set(shards.values()))]
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise WeightsError(f"{file} does not exist; expected safetensors weights in the folder")
    return files


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder on the CPU, as they are stored, in memory of their own.

    A copy, because the file behind a mapping may change or be cut off before the weights are used; not yet in float32,
    because whatever they are copied into converts them on the way, and half the bytes are read in half the time.
    """
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
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
        if tuple(found[name].shape) != shape:
            given = list(found[name].shape)
            raise WeightsError(f"{where}: tensor {name} has shape {given}, expected {list(shape)}")
        if not found[name].is_floating_point():
            raise WeightsError(
                f"{where}: tensor {name} is of type {found[name].dtype}, expected floating point"
            )
        if not _all_finite(found[name]):
            raise WeightsError(f"{where}: tensor {name} holds values that are not finite")
    return {name: found[name] for name in shapes}


def _all_finite(tensor: Tensor) -> bool:
    """One value that is not finite makes the sum so; only if the sum is not are all values looked at."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def check_config(served: dict[str, Any], folder: Path) -> None:
    """Refuse a folder whose `config.json` describes another forward pass than the one that is served."""
    new = read_json(folder / "config.json")
    for key in _SAME:
        if key in new and key in served and new[key] != served[key]:
            raise WeightsError(
                f"{folder / 'config.json'}: {key} is {new[key]!r}, the served model has {served[key]!r}"
            )


def unknown_tensor(name: str) -> WeightsError:
    """The error of a tensor that the model does not have."""
    return WeightsError(f"tensor {name!r} is unknown to the model that is served")
