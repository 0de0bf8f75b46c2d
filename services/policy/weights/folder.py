"""Looking at a weight folder: whether it is whole, what was published, fits the engines, and what they have to show of it.

What is checked before any engine is disturbed, in this order; every error names the file or the tensor:

    config.json is there; the manifest has the digest that was announced
    every file that the manifest names is there, with its size and (`contents`) its checksum
    every safetensors file is whole: its header, its offsets, its length
    the forward pass that config.json describes, and the names and shapes of the tensors, are those of the weights that serve
    (`contents`) no tensor holds a value that is infinite or not a number

`contents` reads every byte once, while requests run on. `sizes` reads headers only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from services.policy.engines.probe import PROBE, Probe, read_probe
from triforge.chat_template import read_json
from triforge.errors import TriforgeError, WeightsError
from triforge.store.manifests import BLOCK, Manifest, Reading, blocks, each_file, load_manifest
from triforge.store.model_config import difference
from triforge.store.tensor_files import Entry, all_finite, first_rows, read_folder

_log = logging.getLogger(__name__)

CONFIG = "config.json"
_SHOWN = 4  # tensors that an engine is asked for
_COMPARED = 48  # tensors of a folder that are compared with the folder before
_ROWS = 4
_NUMBERS = 512  # of a tensor with one axis
# SGLang keeps these inside larger matrices, and where it looks for them holds for some models only.
_FUSED = (".k_proj.", ".v_proj.", ".gate_proj.", ".up_proj.", ".experts.", "inv_freq")

Depth = Literal["contents", "sizes"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """A folder that was looked at."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Rows:
    """The first `count` rows of a tensor, for an engine to show."""

    name: str
    count: int
    values: Floats


@dataclass(frozen=True, slots=True)
class Version:
    """A weight version and the folder it comes from."""

    number: int
    uri: str  # empty if nobody knows it
    digest: str = ""  # of its manifest
    weights: Weights | None = None  # None if this machine cannot read the folder
    rows: tuple[Rows, ...] = ()  # what engines have to show of it
    base: Version | None = None  # of an adapter, the version below it, whose `weights` it has
    adapter: str = ""  # its name at the engines; none where the base itself is served beside adapters of other models
    probe: Probe | None = None  # what those have to show that have an adapter, or can show no rows

    @property
    def below(self) -> Version:
        """What the engine itself has to hold."""
        return self.base or self


def described(version: Version) -> Version:
    """A version with what its folder says; as it is if this machine cannot read the folder."""
    try:
        weights = read_weights(Path(version.uri))
        return with_proof(version, weights, None)
    except WeightsError as error:
        _log.warning("the weights that serve cannot be compared: %s", error.detail)
        return version


def with_proof(version: Version, weights: Weights, serving: Weights | None) -> Version:
    """A version with what its folder says, and what engines have to show of it. Initial folders have no probe."""
    probe = read_probe(weights.folder) if (weights.folder / PROBE).is_file() else None
    return replace(version, weights=weights, rows=choose_rows(weights, serving), probe=probe)


def version_beside(version: Version, number: int) -> Version | None:
    """The version of that number whose folder lies beside another one's, by its manifest."""
    parent = Path(version.uri).parent
    for folder in sorted(parent.iterdir()) if version.uri and parent.is_dir() else ():
        try:
            manifest = load_manifest(folder)
            if int(manifest.about["version"]) == number:
                return Version(number, str(folder), manifest.digest)
        except (TriforgeError, ValueError, TypeError, KeyError):
            continue  # not a folder that was published
    return None


def published(weights: Path, role: str, number: int, serving: Weights | None) -> list[Version]:
    """The model folders that learners have published under this number, `weights`/RUN/`role`/vNNNNNN, newest first."""
    found = []
    for folder in weights.glob(f"*/{role}/v{number:06d}"):
        try:
            manifest, read = load_manifest(folder), read_weights(folder)
            if "base" in manifest.about:
                continue  # an adapter, which no engine has for its weights
            version = with_proof(Version(number, str(folder), manifest.digest), read, serving)
            found.append((folder.stat().st_mtime, version))
        except (TriforgeError, OSError) as error:
            _log.warning("%s is passed over: %s", folder, error)
    found.sort(key=lambda pair: -pair[0])
    return [version for _, version in found]


def read_weights(folder: Path) -> Weights:
    """Config and headers of a folder."""
    path = folder / CONFIG
    if not path.is_file():
        raise WeightsError(
            f"weights {folder}: expected a model folder with {CONFIG} on this machine"
        )
    return Weights(folder, read_object(path), read_folder(folder))


def check_folder(
    folder: Path, *, digest: str, depth: Depth, serving: Weights | None = None
) -> Weights:
    """Pass if a folder can be given to the engines; blocking. An empty `digest` asks for no manifest."""
    manifest = announced(folder, digest) if (folder / CONFIG).is_file() else None
    found = read_weights(folder)
    if serving is not None:
        _check_architecture(found, serving)
    if depth == "contents":
        check_contents(found.tensors, manifest)
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    if not path.is_file():
        raise WeightsError(f"{path}: cannot be read: there is no such file")
    return read_json(path)


def announced(folder: Path, digest: str) -> Manifest | None:
    """The manifest of a folder, whose files are there with their sizes; None if no digest was announced."""
    if not digest:
        return None
    manifest = load_manifest(folder, announced=digest)
    manifest.check(contents=False)
    return manifest


def _check_architecture(found: Weights, serving: Weights) -> None:
    changed = difference(found.config, serving.config)
    if changed is not None:
        field, given, expected = changed
        raise WeightsError(
            f"{found.folder / CONFIG}: {field} is {given!r:.80}, expected {expected!r:.80} as in the weights that serve; "
            "engines read their config at their start only: restart them with this folder, or mend the config"
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
    """Read every file: that it is what the manifest lists, if there is one, and that every value is finite."""
    by_file: dict[Path, list[Entry]] = {}
    for entry in tensors.values():
        by_file.setdefault(entry.file, []).append(entry)

    def read(path: Path) -> str:
        listed = manifest.files.get(path.name) if manifest is not None else None
        reading = Reading(path.name, listed) if listed else None
        try:
            problem = _read_through(path, by_file[path], reading)
        except OSError as error:
            problem = f"{path.name} cannot be read: {error.strerror or error}"
        return problem and f"{path.parent}: {problem}"

    if problem := next(filter(None, each_file(read, [*by_file])), ""):
        raise WeightsError(problem)
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


# ---- what engines have to show ----


def choose_rows(new: Weights, old: Weights | None) -> tuple[Rows, ...]:
    """What an engine is asked for after an update: rows that differ from those before, if possible even in bfloat16."""
    names = [n for n in new.tensors if not any(part in n for part in _FUSED)]
    step = max(1, len(names) // _COMPARED)
    ranked: list[tuple[int, Rows]] = []
    for name in names[::step]:
        rows = _rows_of(new.tensors[name])
        if rows is not None:
            before = _rows_of(old.tensors[name]) if old and name in old.tensors else None
            ranked.append((_alike(rows, before), rows))
    ranked.sort(key=lambda pair: pair[0])
    return tuple(rows for _, rows in ranked[:_SHOWN])


def _rows_of(entry: Entry) -> Rows | None:
    count = _ROWS if len(entry.shape) > 1 else _NUMBERS
    values = first_rows(entry, count)
    return None if values is None or values.size == 0 else Rows(entry.name, count, values)


def _alike(new: Rows, old: Rows | None) -> int:
    """0: differ even in bfloat16; 1: differ; 2: the same, or nothing to compare with."""
    if old is None or old.values.shape != new.values.shape:
        return 2
    if not np.array_equal(as_bfloat16(new.values), as_bfloat16(old.values)):
        return 0
    return 2 if np.array_equal(new.values, old.values) else 1


def as_bfloat16(values: Floats) -> Floats:
    """Round to the nearest bfloat16, ties to even, as torch does."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def compare_rows(expected: Rows, given: Any) -> None:
    """Pass if an engine's answer is the expected rows, or (of a tensor split over devices) their beginnings, bit for bit.

    Engines compute in float32, bfloat16 or float16.
    """
    try:
        found = np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError):
        raise WeightsError(f"tensor {expected.name}: answered {given!r:.80}") from None
    wanted = expected.values
    if found.ndim != wanted.ndim or found.size == 0 or len(found) != len(wanted):
        raise WeightsError(
            f"tensor {expected.name}: shows rows of shape {list(found.shape)}, expected {list(wanted.shape)}"
        )
    wanted = wanted[tuple(slice(size) for size in found.shape)]
    if found.shape != wanted.shape or not any(np.array_equal(found, f) for f in _forms(wanted)):
        raise WeightsError(
            f"tensor {expected.name}: holds {_short(found)}, expected {_short(wanted)} as published"
        )


def _forms(values: Floats) -> Sequence[Floats]:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16).astype(np.float64)
    return (values.astype(np.float32).astype(np.float64), as_bfloat16(values), half)


def _short(values: Floats) -> str:
    return "[" + ", ".join(f"{v:.6g}" for v in values.ravel()[:3]) + ", ...]"
