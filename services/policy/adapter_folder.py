"""Looking at an adapter's folder before any engine is disturbed: is it whole, what was published, and does it fit its base.

The format is PEFT's, with a manifest that names the base and a probe: a prompt with its log-probabilities under the new
weights. Every error names the file or the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.policy.weight_folder import Depth, Weights, announced, check_contents, read_object
from triforge.errors import WeightsError
from triforge.store.manifests import MANIFEST
from triforge.store.tensor_files import Entry, read_header

CONFIG, TENSORS, PROBE = "adapter_config.json", "adapter_model.safetensors", "probe.json"
_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class AdapterProbe:
    """A prompt and the log-probability of each of its ids but the first."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A folder that was looked at; `base_uri` and `base_digest` are those of the model it was trained over.

    Layers that are called like one of the `targets` are adapted, but for the `spared`: what a model sees with.
    """

    folder: Path
    rank: int
    targets: frozenset[str]
    spared: frozenset[str]
    tensors: Mapping[str, Entry]
    base_uri: str
    base_digest: str
    probe: AdapterProbe


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no whole model."""
    return (folder / CONFIG).is_file()


def check_adapter(folder: Path, *, digest: str, depth: Depth) -> AdapterFolder:
    """Pass if a folder is a whole adapter, as published.

    Args:
        folder: the folder.
        digest: SHA-256 of its manifest as it was announced; empty leaves the files unchecked.
        depth: `contents` reads every byte.

    Raises:
        WeightsError: it is not; the sentence names the file, what was found and what was expected.
    """
    manifest = announced(folder, digest)
    base = read_object(folder / MANIFEST).get("base")
    if not isinstance(base, dict) or not all(
        isinstance(base.get(k), str) for k in ("uri", "digest")
    ):
        raise WeightsError(f"{folder / MANIFEST}: names no base with uri and digest: {base!r:.80}")
    settings = read_object(folder / CONFIG)
    rank, targets = settings.get("r"), settings.get("target_modules")
    if type(rank) is not int or rank < 1 or not isinstance(targets, list) or not targets:
        raise WeightsError(
            f"{folder / CONFIG}: r is {rank!r} and target_modules {targets!r:.80}; expected a number and names"
        )
    spared = settings.get("exclude_modules") or []
    if not isinstance(spared, list):
        raise WeightsError(
            f"{folder / CONFIG}: exclude_modules is {spared!r:.80}; expected names of layers"
        )
    tensors = {entry.name: entry for entry in read_header(folder / TENSORS)}
    if depth == "contents" and tensors:
        check_contents(tensors, manifest)
    probe = _probe(folder / PROBE)
    return AdapterFolder(
        folder, rank, frozenset(map(str, targets)), frozenset(map(str, spared)), tensors, base["uri"],
        base["digest"], probe,
    )  # fmt: skip


def _probe(path: Path) -> AdapterProbe:
    found = read_object(path)
    ids, logprobs = found.get("ids"), found.get("logprobs")
    if not (
        _all(ids, int) and _all(logprobs, float) and len(ids or ()) == len(logprobs or ()) + 1 > 1
    ):
        raise WeightsError(
            f"{path}: expected ids and one log-probability for each but the first, found {ids!r:.40}, {logprobs!r:.40}"
        )
    return AdapterProbe(tuple(ids or ()), tuple(logprobs or ()))


def _all(values: Any, kind: type[float]) -> bool:
    if not isinstance(values, list):
        return False
    return all(isinstance(v, kind) and math.isfinite(v) for v in values)


def check_fits(adapter: AdapterFolder, base: Weights) -> None:
    """Pass if an adapter has its two matrices for every layer that it should adapt, in the right shapes, and no others.

    Raises:
        WeightsError: it has not; the sentence names the tensor.
    """
    path = adapter.folder / TENSORS
    expected: dict[str, Sequence[int]] = {}
    for name, entry in base.tensors.items():
        layer = name.removesuffix(".weight")
        adapted = layer.rpartition(".")[2] in adapter.targets and layer not in adapter.spared
        if adapted and len(entry.shape) == 2:
            wide, narrow = entry.shape
            expected[f"{_PREFIX}{layer}.lora_A.weight"] = (adapter.rank, narrow)
            expected[f"{_PREFIX}{layer}.lora_B.weight"] = (wide, adapter.rank)
    for word, names in (
        ("missing", expected.keys() - adapter.tensors.keys()),
        (f"not of a layer of {base.folder}", adapter.tensors.keys() - expected.keys()),
    ):
        if names:
            raise WeightsError(f"{path}: tensor {min(names)} is {word} ({len(names)} such in all)")
    for name, shape in expected.items():
        if tuple(adapter.tensors[name].shape) != tuple(shape):
            raise WeightsError(
                f"{path}: tensor {name} has shape {list(adapter.tensors[name].shape)}, expected {list(shape)}"
            )
