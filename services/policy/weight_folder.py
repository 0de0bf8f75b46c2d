"""Looking at a weight folder before any engine is disturbed: is it whole, what was published, and does it fit.

What is checked, in this order; every error names the file or the tensor:

    config.json is there; the manifest has the digest that was announced
    every file that the manifest names is there, with its size and (`contents`) its checksum
    every safetensors file is whole: its header, its offsets, its length
    the architecture, and the names and shapes of the tensors, are those of the weights that serve
    (`contents`) no tensor holds a value that is infinite or not a number

`contents` reads every byte once, while requests run on. `sizes` reads headers only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from triforge.errors import TriforgeError, WeightsError
from triforge.store.manifests import BLOCK, Manifest, Reading, blocks, load_manifest
from triforge.store.tensor_files import Entry, all_finite, read_folder

CONFIG = "config.json"
# What says which forward pass it is, beside the shapes.
_ARCHITECTURE = ("model_type", "architectures", "num_attention_heads", "num_key_value_heads",
                 "head_dim", "tie_word_embeddings")  # fmt: skip

Depth = Literal["contents", "sizes"]


@dataclass(frozen=True, slots=True)
class Weights:
    """A folder that was looked at."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Entry]


def read_weights(folder: Path) -> Weights:
    """Config and headers of a folder.

    Raises:
        WeightsError: there is no config.json, or a file is damaged.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise WeightsError(
            f"weights {folder}: expected a model folder with {CONFIG} on this machine"
        )
    return Weights(folder, read_object(path), read_folder(folder))


def check_folder(
    folder: Path, *, digest: str, depth: Depth, serving: Weights | None = None
) -> Weights:
    """Pass if a folder can be given to the engines.

    Args:
        folder: the folder.
        digest: SHA-256 of its manifest as it was announced; empty asks for no manifest.
        depth: how much is read.
        serving: the weights that serve now, whose architecture and shapes are expected; None expects nothing.

    Raises:
        WeightsError: it cannot; the sentence names the file or the tensor, what was found and what was expected.
    """
    if not (folder / CONFIG).is_file():
        raise WeightsError(
            f"weights {folder}: expected a model folder with {CONFIG} on this machine"
        )
    manifest = announced(folder, digest)
    found = read_weights(folder)
    if serving is not None:
        _check_architecture(found, serving)
    if depth == "contents":
        check_contents(found.tensors, manifest)
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
        WeightsError: there is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path}: holds a {type(found).__name__}, expected an object")
    return found


def announced(folder: Path, digest: str) -> Manifest | None:
    """The manifest of a folder, whose files are there with their sizes; None if no digest was announced.

    Raises:
        WeightsError: the manifest is another one than announced, or a file is not what it says.
    """
    if not digest:
        return None
    manifest = load_manifest(folder, announced=digest)
    manifest.check(contents=False)
    return manifest


def _check_architecture(found: Weights, serving: Weights) -> None:
    for field in _ARCHITECTURE:
        given, expected = found.config.get(field), serving.config.get(field)
        if given is not None and expected is not None and given != expected:
            raise WeightsError(
                f"{found.folder / CONFIG}: {field} is {given!r}, expected {expected!r} as in the weights that serve; "
                "engines cannot change their architecture while they run"
            )
    if not found.tensors or not serving.tensors:
        return
    optional = {"lm_head.weight"} if found.config.get("tie_word_embeddings") else set()
    missing = _named(serving) - _named(found) - optional
    unknown = _named(found) - _named(serving) - optional
    for word, names in (("missing", missing), ("unknown to the model that serves", unknown)):
        if names:
            raise WeightsError(
                f"weights {found.folder}: tensor {min(names)} is {word} ({len(names)} such in all)"
            )
    for name in sorted(_named(found) & _named(serving)):
        given_shape, shape = found.tensors[name].shape, serving.tensors[name].shape
        if given_shape != shape:
            raise WeightsError(
                f"{found.tensors[name].file}: tensor {name} has shape {list(given_shape)}, expected {list(shape)}"
            )


def _named(weights: Weights) -> set[str]:
    return {name for name in weights.tensors if not name.endswith("rotary_emb.inv_freq")}


def check_contents(tensors: Mapping[str, Entry], manifest: Manifest | None) -> None:
    """Read every file: that it is what the manifest lists, and that every value is finite.

    Args:
        tensors: of the folder; their files are read in any case.
        manifest: of the folder; None compares no checksum.

    Raises:
        WeightsError: one is not.
    """
    by_file: dict[Path, list[Entry]] = {}
    for entry in tensors.values():
        by_file.setdefault(entry.file, []).append(entry)
    for path, entries in by_file.items():
        listed = manifest.files.get(path.name) if manifest is not None else None
        try:
            problem = _read_through(path, entries, Reading(path.name, listed) if listed else None)
        except OSError as error:
            problem = f"{path.name} cannot be read: {error.strerror or error}"
        if problem:
            raise WeightsError(f"{path.parent}: {problem}")
    if manifest is not None:
        manifest.check(contents=True, but={path.name for path in by_file})


def _read_through(path: Path, entries: list[Entry], reading: Reading | None) -> str:
    """Read a safetensors file once, for its checksum and every value; returns what is wrong with it."""
    space, odd = memoryview(bytearray(BLOCK)), ""
    entries = sorted(entries, key=lambda e: e.start)
    with path.open("rb") as file:
        parts = [(entries[0].start, None), *((entry.end - entry.start, entry) for entry in entries)]
        for left, entry in parts:
            for block in blocks(file, left, space):
                left -= len(block)
                if reading is not None:
                    reading.update(block)
                if entry is not None and not odd and not all_finite(block, entry.dtype):
                    odd = f"{path.name}: tensor {entry.name} holds values that are not finite"
            if left:
                return f"{path.name} became shorter while it was read"
    # Values that the disk has damaged are its damage first.
    return (reading.problem() if reading is not None else "") or odd


def manifest_version(folder: Path) -> tuple[int, str] | None:
    """(version, digest) of a folder that was published; None for any other."""
    try:
        manifest = load_manifest(folder)
        return int(manifest.about["version"]), manifest.digest
    except (TriforgeError, ValueError, TypeError, KeyError):
        return None
