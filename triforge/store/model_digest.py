"""The digest of a model folder's config and tensors, whatever other files are in it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from triforge.errors import WeightsError
from triforge.store.tensor_files import regular_size


def model_digest(folder: Path) -> str:
    """Return the SHA-256 over names and SHA-256 sums of `config.json` and all safetensors files. Blocking.

    A process reads each file once, as long as its size and time stay the same.

    Raises:
        WeightsError: a file is missing or cannot be read.
    """
    whole = hashlib.sha256()
    try:
        for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
            regular_size(path)
            stat = path.stat()
            whole.update(f"{path.name} {_sha256(path, stat.st_size, stat.st_mtime_ns)}\n".encode())
    except OSError as error:
        raise WeightsError(
            f"model folder {folder}: cannot be read: {error.strerror or error} ({error.filename})"
        ) from error
    return whole.hexdigest()


@lru_cache(maxsize=1024)
def _sha256(path: Path, _size: int, _mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
