"""Weight folders: checked before any engine is disturbed. Every error names the file or the tensor.

    config.json exists; the manifest has the announced digest
    every file of the manifest exists with its size and (`contents`) its checksum
    every safetensors file is whole: its header, its offsets, its length
    the forward pass of config.json, and the names and shapes of the tensors, are those of the weights that serve
    an output matrix that is the embedding is not stored with other values, and one that is not is there
    (`contents`) no tensor holds a value that is infinite or not a number

`contents` reads every byte once, while requests run on. `sizes` reads headers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from services.policy.weights.evidence import Rows, sample_rows
from triforge.chat_template import read_json
from triforge.errors import WeightsError
from triforge.store.manifests import BLOCK, Checksum, Manifest, blocks, each_file, load_manifest
from triforge.store.model_config import demand_head, difference, ties_embeddings
from triforge.store.tensor_files import Entry, all_finite, read_folder

CONFIG = "config.json"
Depth = Literal["contents", "sizes"]


@dataclass(frozen=True, slots=True)
class Weights:
    """The config, the tensor headers and some rows of a folder, as they were when it was read."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Entry]
    rows: Mapping[str, Rows]


def read_weights(folder: Path) -> Weights:
    """Read config and headers of a folder."""
    path = folder / CONFIG
    if not path.is_file():
        raise WeightsError(
            f"weights {folder}: expected a model folder with {CONFIG} on this machine"
        )
    config, tensors = read_object(path), read_folder(folder)
    return Weights(folder, config, tensors, sample_rows(tensors))


def check_folder(
    folder: Path, *, digest: str, depth: Depth, serving: Weights | None = None
) -> Weights:
    """Raise WeightsError unless engines can load a folder; blocking. An empty `digest` asks for no manifest."""
    manifest = load_announced(folder, digest) if (folder / CONFIG).is_file() else None
    weights = read_weights(folder)
    if serving is not None:
        _check_architecture(weights, serving)
    demand_head(folder, weights.config, weights.tensors)
    if depth == "contents":
        check_contents(weights.tensors, manifest)
    return weights


def read_object(path: Path) -> dict[str, Any]:
    """Read the object of a JSON file."""
    if not path.is_file():
        raise WeightsError(f"{path}: cannot be read: there is no such file")
    return read_json(path)


def load_announced(folder: Path, digest: str) -> Manifest | None:
    """Load the manifest of a folder and check the sizes of its files; None if no digest was announced."""
    if not digest:
        return None
    manifest = load_manifest(folder, announced=digest)
    manifest.check(contents=False)
    return manifest


def _check_architecture(weights: Weights, serving: Weights) -> None:
    changed = difference(weights.config, serving.config)
    if changed is not None:
        field, value, expected = changed
        raise WeightsError(
            f"{weights.folder / CONFIG}: {field} is {value!r:.80}, expected {expected!r:.80} as in the weights that serve; "
            "engines read their config at their start only: restart them with this folder, or mend the config"
        )
    if not weights.tensors or not serving.tensors:
        return
    optional = {"lm_head.weight"} if ties_embeddings(weights.config) else set()
    names, expected_names = _names(weights), _names(serving)
    for problem, wrong in (
        ("missing", expected_names - names - optional),
        ("unknown to the model that serves", names - expected_names - optional),
    ):
        if wrong:
            raise WeightsError(
                f"weights {weights.folder}: tensor {min(wrong)} is {problem} ({len(wrong)} such in all)"
            )
    for name in sorted(names & expected_names):
        entry, shape = weights.tensors[name], serving.tensors[name].shape
        if entry.shape != shape:
            raise WeightsError(
                f"{entry.file}: tensor {name} has shape {list(entry.shape)}, expected {list(shape)}"
            )


def _names(weights: Weights) -> set[str]:
    return {name for name in weights.tensors if not name.endswith("rotary_emb.inv_freq")}


def check_contents(tensors: Mapping[str, Entry], manifest: Manifest | None) -> None:
    """Read every file; raise WeightsError unless it is the file of the manifest, if there is one, and every value is finite."""
    by_file: dict[Path, list[Entry]] = {}
    for entry in tensors.values():
        by_file.setdefault(entry.file, []).append(entry)

    def read(path: Path) -> str:
        listed = manifest.files.get(path.name) if manifest is not None else None
        checksum = Checksum(path.name, listed) if listed else None
        try:
            problem = _read_through(path, by_file[path], checksum)
        except OSError as error:
            problem = f"{path.name} cannot be read: {error.strerror or error}"
        return problem and f"{path.parent}: {problem}"

    if problem := next(filter(None, each_file(read, [*by_file])), ""):
        raise WeightsError(problem)
    if manifest is not None:
        manifest.check(contents=True, but={path.name for path in by_file})


def _read_through(path: Path, entries: list[Entry], checksum: Checksum | None) -> str:
    """Read a safetensors file once, for its checksum and every value; return what is wrong with it."""
    space, not_finite = memoryview(bytearray(BLOCK)), ""
    entries = sorted(entries, key=lambda e: e.start)
    with path.open("rb") as file:
        parts = [(entries[0].start, None), *((entry.end - entry.start, entry) for entry in entries)]
        for left, entry in parts:
            for block in blocks(file, left, space):
                left -= len(block)
                if checksum is not None:
                    checksum.update(block)
                if entry is not None and not not_finite and not all_finite(block, entry.dtype):
                    not_finite = (
                        f"{path.name}: tensor {entry.name} holds values that are not finite"
                    )
            if left:
                return f"{path.name} became shorter while it was read"
    # A wrong checksum explains wrong values, so it is reported first.
    return (checksum.problem() if checksum is not None else "") or not_finite
