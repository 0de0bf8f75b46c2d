"""Safetensors files without torch: what lies where in a folder, and parts of tensors as numbers.

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
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth")
_SLACK = 1 << 24  # weights; that some are missing is said by name, after the model was built
_NUMBERS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# The bits of infinity, by type; those of the least NaN where the type has no infinity.
_NOT_FINITE = {
    "F64": 0x7FF0_0000_0000_0000, "F32": 0x7F80_0000, "F16": 0x7C00, "BF16": 0x7F80, "F8_E4M3": 0x7F, "F8_E5M2": 0x7C,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: its bytes are `[start, end)` of the file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> list[Entry]:
    """The tensors of a file, in the order of their bytes.

    Raises:
        WeightsError: it cannot be read, is truncated, or its header is not what the format asks for.
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
        found = [
            _entry(path, name, about, 8 + length)
            for name, about in header.items()
            if name != "__metadata__"
        ]
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsError(f"{path}: the safetensors header cannot be read: {error}") from error
    found.sort(key=lambda entry: entry.start)
    _check_layout(path, found, 8 + length, size)
    return found


def regular_size(path: Path) -> int:
    """The bytes of a regular file; WeightsError for a pipe or device, whose reading may never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise WeightsError(f"{path}: cannot be read: it is no regular file")
    return found.st_size


def _entry(path: Path, name: str, about: dict[str, Any], base: int) -> Entry:
    start, end = about["data_offsets"]
    shape = tuple(map(int, about["shape"]))
    return Entry(path, name, str(about["dtype"]), shape, base + start, base + end)


def _check_layout(path: Path, entries: Sequence[Entry], base: int, size: int) -> None:
    at = base
    for entry in entries:
        wanted = math.prod(entry.shape) * SIZES.get(entry.dtype, 0)
        if entry.dtype not in SIZES:
            raise WeightsError(f"{path}: tensor {entry.name} is of the unknown type {entry.dtype}")
        if entry.start != at or entry.end - entry.start != wanted:
            raise WeightsError(
                f"{path}: tensor {entry.name} ({entry.dtype} {list(entry.shape)}) should take {wanted} bytes from {at} "
                f"on, its header says {entry.start} to {entry.end}"
            )
        at = entry.end
    if at != size:
        raise WeightsError(f"{path}: is truncated: has {size} bytes, its header describes {at}")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder; WeightsError when one that an index names is missing, or one is no regular file."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        found = sorted(folder.glob("*.safetensors"))
        for path in found:
            regular_size(path)
        return found
    try:
        names = sorted(map(str, set(from_json(index.read_bytes())["weight_map"].values())))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsError(f"{index}: cannot be read: {error}") from error
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise WeightsError(f"{folder}: {name} is missing; {index.name} names it")
    return [folder / name for name in names]


def read_folder(folder: Path) -> dict[str, Entry]:
    """All tensors of a model folder by name, each stored once; empty for a folder without weights. Raises as `read_header`."""
    found: dict[str, Entry] = {}
    for path in weight_files(folder):
        for entry in read_header(path):
            if entry.name in found:
                raise WeightsError(
                    f"{path}: tensor {entry.name} is stored twice, before in {found[entry.name].file}"
                )
            found[entry.name] = entry
    return found


def demand_layers(folder: Path, config: Mapping[str, Any], tensors: int) -> None:
    """Pass if a config names no more layers than its folder holds tensors; it is asked before a model is built."""
    parts = [config, *(config.get(name) for name in ("text_config", "vision_config"))]
    for part in parts:
        given = part if isinstance(part, Mapping) else {}
        for name in _LAYERS:
            if isinstance(found := given.get(name), int) and found > tensors:
                raise WeightsError(
                    f"{folder / 'config.json'}: {name} is {found}, but the folder holds {tensors} tensors"
                )


def demand_numbers(folder: Path, described: int, held: int) -> None:
    """Pass if no memory is to be taken for far more weights than a folder holds."""
    if described > 2 * held + _SLACK:
        raise WeightsError(
            f"{folder / 'config.json'}: describes {described} weights, but the folder holds {held}"
        )


def read_bytes(entry: Entry, count: int) -> bytes:
    """The first bytes of a tensor; WeightsError when the file is gone or shorter than it was."""
    try:
        with entry.file.open("rb") as file:
            file.seek(entry.start)
            data = file.read(count)
    except OSError as error:
        raise WeightsError(f"{entry.file}: cannot be read: {error.strerror or error}") from error
    if len(data) != count:
        raise WeightsError(f"{entry.file}: tensor {entry.name} is truncated")
    return data


def first_rows(entry: Entry, rows: int) -> NDArray[np.float64] | None:
    """The first entries along the first axis, as SGLang's `/get_weights_by_name` gives them; float64 [rows, ...].

    None for a type that has no plain numbers, and for a tensor without axes.
    """
    kind = _NUMBERS.get(entry.dtype)
    if not entry.shape or kind is None:
        return None
    count = min(rows, entry.shape[0])
    inner = math.prod(entry.shape[1:])
    values = np.frombuffer(read_bytes(entry, count * inner * SIZES[entry.dtype]), dtype=kind)
    if entry.dtype == "BF16":  # the upper half of a float32
        values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float64).reshape(count, *entry.shape[1:])


def all_finite(data: bytes | memoryview, dtype: str) -> bool:
    """Whether no element is infinite or not a number; True for types that cannot be either.

    Such a value has larger bits than any other of its sign. Those of the sign + are the largest signed integers, those of
    the sign - the largest unsigned ones, so two largest values tell, and nothing is computed for each element.
    """
    infinity = _NOT_FINITE.get(dtype)
    if infinity is None or not data:
        return True
    size = SIZES[dtype]
    signed = np.frombuffer(data, dtype=f"<i{size}")
    sign = 1 << (8 * size - 1)
    return int(signed.max()) < infinity and int(signed.view(f"<u{size}").max()) < sign + infinity
