"""Safetensors files without torch: the layout of a folder's tensors, and parts of tensors as numbers.

A file is eight bytes with the length of a JSON header (little-endian), the header, and the tensors' bytes.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from triforge.errors import WeightsError

# Bytes of an element, by safetensors' name of the type.
SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_MAX_HEADER = 100_000_000
WHOLE = "model.safetensors"
_BLOCK = 1 << 20  # bytes that are compared at once
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth")
_SLACK = 1 << 24  # weights; loading the model names the missing ones
_NUMBERS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# The bits of infinity, by type; those of the least NaN where the type has no infinity.
_NOT_FINITE = {
    "F64": 0x7FF0_0000_0000_0000, "F32": 0x7F80_0000, "F16": 0x7C00, "BF16": 0x7F80, "F8_E4M3": 0x7F, "F8_E5M2": 0x7C,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file: its bytes are `[start, end)` of the file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> list[Entry]:
    """Return the tensors of a file, in the order of their bytes.

    Raises:
        WeightsError: it cannot be read, is truncated, or its header does not follow the format.
    """
    try:
        size = regular_size(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(_MAX_HEADER, size - 8):
                raise WeightsError(
                    f"{path}: no safetensors file: its header would have {length} bytes, the file has {size}"
                )
            header = from_json(file.read(length))
        entries = [
            _entry(path, name, about, 8 + length)
            for name, about in header.items()
            if name != "__metadata__"
        ]
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsError(f"{path}: the safetensors header cannot be read: {error}") from error
    entries.sort(key=lambda entry: entry.start)
    _check_layout(path, entries, 8 + length, size)
    return entries


def regular_size(path: Path) -> int:
    """Return the size of a regular file; WeightsError for a pipe or device, whose reading may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise WeightsError(f"{path}: cannot be read: it is no regular file")
    return status.st_size


def _entry(path: Path, name: str, about: dict[str, Any], base: int) -> Entry:
    start, end = about["data_offsets"]
    shape = tuple(map(int, about["shape"]))
    return Entry(path, name, str(about["dtype"]), shape, base + start, base + end)


def _check_layout(path: Path, entries: Sequence[Entry], base: int, size: int) -> None:
    at = base
    for entry in entries:
        expected = math.prod(entry.shape) * SIZES.get(entry.dtype, 0)
        if entry.dtype not in SIZES:
            raise WeightsError(f"{path}: tensor {entry.name} is of the unknown type {entry.dtype}")
        if entry.start != at or entry.end - entry.start != expected:
            raise WeightsError(
                f"{path}: tensor {entry.name} ({entry.dtype} {list(entry.shape)}) should take {expected} bytes from {at} "
                f"on, its header says {entry.start} to {entry.end}"
            )
        at = entry.end
    if at != size:
        raise WeightsError(f"{path}: is truncated: has {size} bytes, its header describes {at}")


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder's model; WeightsError if one of its index is missing, or one is no regular file.

    An index next to a `model.safetensors` that it does not name is refused: transformers takes the one, SGLang the other.

    Without an index that is `model.safetensors` alone where it is there: next to it may lie the same weights in another form, as
    Mistral's `consolidated.safetensors`.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        files = [path for path in files if path.name == WHOLE] or files
        for path in files:
            regular_size(path)
        return files
    try:
        names = sorted(map(str, set(from_json(index.read_bytes())["weight_map"].values())))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsError(f"{index}: cannot be read: {error}") from error
    if WHOLE not in names and (folder / WHOLE).exists():
        raise WeightsError(
            f"{folder}: {WHOLE} is there and {index.name}, which does not name it: some engines would serve one and some the "
            "other; delete the one that is not the model"
        )
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise WeightsError(f"{folder}: {name} is missing; {index.name} names it")
    return [folder / name for name in names]


def read_folder(folder: Path) -> dict[str, Entry]:
    """Return all tensors of a model folder by name; empty for a folder without weights. Raises as `read_header`."""
    tensors: dict[str, Entry] = {}
    for path in weight_files(folder):
        for entry in read_header(path):
            if entry.name in tensors:
                raise WeightsError(
                    f"{path}: tensor {entry.name} is stored twice, before in {tensors[entry.name].file}"
                )
            tensors[entry.name] = entry
    return tensors


def demand_layers(folder: Path, config: Mapping[str, Any], tensors: int) -> None:
    """Accept a config with at most as many layers as its folder has tensors; checked before a model is built."""
    for part in (config, *(config.get(name) for name in ("text_config", "vision_config"))):
        for name in _LAYERS:
            layers = part.get(name) if isinstance(part, Mapping) else None
            if isinstance(layers, int) and layers > tensors:
                raise WeightsError(
                    f"{folder / 'config.json'}: {name} is {layers}, but the folder holds {tensors} tensors"
                )


def demand_numbers(folder: Path, described: int, held: int) -> None:
    """Accept a config that describes not many more weights than its folder holds; checked before memory is allocated."""
    if described > 2 * held + _SLACK:
        raise WeightsError(
            f"{folder / 'config.json'}: describes {described} weights, but the folder holds {held}"
        )


def same_bytes(one: Entry, other: Entry) -> bool:
    """Return whether two tensors are of the same type, shape and bytes. WeightsError: they cannot be read."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    try:
        with one.file.open("rb") as first, other.file.open("rb") as second:
            first.seek(one.start)
            second.seek(other.start)
            for at in range(one.start, one.end, _BLOCK):
                size = min(_BLOCK, one.end - at)
                if first.read(size) != second.read(size):
                    return False
    except OSError as error:
        raise WeightsError(f"{one.file}: cannot be read: {error.strerror or error}") from error
    return True


def first_rows(entry: Entry, rows: int) -> NDArray[np.float64] | None:
    """Return the first entries along the first axis, like SGLang's `/get_weights_by_name`: float64 [rows, ...].

    Return None for a type without plain numbers, and for a tensor without axes. WeightsError if the file became shorter.
    """
    kind = _NUMBERS.get(entry.dtype)
    if not entry.shape or kind is None:
        return None
    count = min(rows, entry.shape[0])
    size = count * math.prod(entry.shape[1:]) * SIZES[entry.dtype]
    try:
        with entry.file.open("rb") as file:
            file.seek(entry.start)
            data = file.read(size)
    except OSError as error:
        raise WeightsError(f"{entry.file}: cannot be read: {error.strerror or error}") from error
    if len(data) != size:
        raise WeightsError(f"{entry.file}: tensor {entry.name} is truncated")
    values = np.frombuffer(data, dtype=kind)
    if entry.dtype == "BF16":  # the upper half of a float32
        values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float64).reshape(count, *entry.shape[1:])


def all_finite(data: bytes | memoryview, dtype: str) -> bool:
    """Return whether no element is infinite or NaN; True for types that have neither.

    Such a value has larger bits than any finite one of its sign. Positive ones are the largest signed integers, negative ones
    the largest unsigned integers, so two maxima decide without a computation for each element.
    """
    infinity = _NOT_FINITE.get(dtype)
    if infinity is None or not data:
        return True
    size = SIZES[dtype]
    signed = np.frombuffer(data, dtype=f"<i{size}")
    sign = 1 << (8 * size - 1)
    return int(signed.max()) < infinity and int(signed.view(f"<u{size}").max()) < sign + infinity
