"""The manifest of a folder: its files with sizes and checksums, written once and compared by its readers.

    manifest.json    {"format": "triforge-folder/1", ..., "files": {"config.json": {"bytes", "sha256", "xxh3_128"}}}

SHA-256 identifies the bytes of a version for good; the digest of a version is the SHA-256 of its manifest. Readers compare
XXH3-128, which takes a small part of the time: it detects the damage of a disk or a copy, not a forged file. Old manifests
have SHA-256 alone, and readers compare that.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import xxhash
from pydantic_core import from_json

from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error
from triforge.store.tensor_files import regular_size

MANIFEST: Final = "manifest.json"
CARD: Final = "README.md"  # of the hub: about the model, no part of it
BLOCK: Final = 1 << 20  # bytes; a block stays in a core's cache while it is hashed
_PARALLEL: Final = 8  # files that are read at once
_FORMAT: Final = "triforge-folder/1"
# By their keys in a manifest: name and constructor. Readers compare the first one that a manifest has.
_HASHES: Final[Mapping[str, tuple[str, Any]]] = {
    "xxh3_128": ("XXH3-128", xxhash.xxh3_128),
    "sha256": ("SHA-256", hashlib.sha256),
}

_F = TypeVar("_F")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a manifest: its size in bytes, and a checksum as hex with its key."""

    size: int
    kind: str
    checksum: str


class Checksum:
    """The checksum of a file that is being read: every byte passes `update`, in order, and `problem` compares."""

    def __init__(self, name: str, listed: ListedFile) -> None:
        self._name, self._listed = name, listed
        self._kind, make = _HASHES[listed.kind]
        self._hash = make()

    def update(self, data: memoryview, /) -> None:
        """Add bytes of the file."""
        self._hash.update(data)

    def problem(self) -> str:
        """Return the difference from the manifest; empty if there is none."""
        checksum = self._hash.hexdigest()
        if checksum == self._listed.checksum:
            return ""
        return (
            f"{self._name} has changed after it was published: its {self._kind} is {checksum}, {MANIFEST} says "
            f"{self._listed.checksum}"
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was read and not yet compared with its folder.

    Attributes:
        digest: its own SHA-256, under which the version is announced.
    """

    folder: Path
    digest: str
    about: Mapping[str, Any]
    files: Mapping[str, ListedFile]

    def problem(self, name: str, *, contents: bool) -> str:
        """Return what is wrong with a file, by its bytes if `contents`, else by its size; empty if nothing is."""
        path, listed = self.folder / name, self.files[name]
        try:
            if not path.is_file():
                return f"{name} is missing, {MANIFEST} names it"
            size = path.stat().st_size
            if size != listed.size:
                return f"{name} has {size} bytes, expected {listed.size}"
            if not contents:
                return ""
            checksum = Checksum(name, listed)
            with path.open("rb") as file:
                for block in blocks(file, size, memoryview(bytearray(BLOCK))):
                    checksum.update(block)
        except FileNotFoundError:  # removed meanwhile
            return f"{name} is missing, {MANIFEST} names it"
        except OSError as error:  # of the disk or the network: the folder may be whole
            raise storage_error("read", str(path), error) from error
        return checksum.problem()

    def check(self, *, contents: bool, but: Collection[str] = frozenset()) -> None:
        """Accept a folder whose files, except those of `but`, are as listed; see `problem`.

        Raises:
            WeightsError: files are missing, truncated or changed; the error names all of them.
            StorageError: a file cannot be read.
        """
        self._refuse(self._problems([n for n in self.files if n not in but], contents=contents))

    def check_whole(self, *, contents: bool) -> None:
        """Check all files, and that the folder holds no others."""
        problems = self._problems([*self.files], contents=contents)
        more = [name for name in files_of(self.folder) if name not in self.files]
        self._refuse([*problems, *(f"{name} is not in the manifest" for name in more)])

    def _problems(self, names: Sequence[str], *, contents: bool) -> list[str]:
        if not contents:
            return [self.problem(name, contents=False) for name in names]
        return each_file(lambda name: self.problem(name, contents=True), names)

    def _refuse(self, problems: list[str]) -> None:
        if named := tuple(filter(None, problems)):
            raise WeightsError(f"{self.folder}: {'; '.join(named)}", problems=named)


def load_manifest(folder: Path, *, announced: str = "") -> Manifest:
    """Read the manifest of a folder, not its files. It must have the digest `announced`, unless that is empty.

    Raises:
        WeightsError: it is missing, is not the one that was announced, or is none of triforge's.
        StorageError: it cannot be read.
    """
    path = folder / MANIFEST
    try:
        regular_size(path)
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        data = None
    except OSError as error:
        raise storage_error("read", str(path), error) from error
    digest = "none" if data is None else hashlib.sha256(data).hexdigest()
    if announced and digest != announced.removeprefix("sha256:"):
        raise WeightsError(
            f"{folder}: the digest of {MANIFEST} is {digest}, expected {announced}; "
            "the folder is incomplete or was changed after it was published"
        )
    if data is None:
        raise WeightsError(f"{folder}: no {MANIFEST}; expected a folder published by triforge")
    try:
        about = from_json(data)
    except ValueError as error:
        raise WeightsError(f"{folder}: {MANIFEST} cannot be read: {error}") from error
    # A manifest with the announced digest is known, even if it names no format.
    if not isinstance(about, dict) or about.get("format", announced and _FORMAT) != _FORMAT:
        raise WeightsError(f"{folder}: {MANIFEST} is not of the format {_FORMAT!r}")
    try:
        files = {name: _listed(name, entry) for name, entry in about.get("files", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{folder}: {MANIFEST}: expected files by name, each with bytes and sha256 ({error!r:.80})"
        ) from error
    return Manifest(folder, digest, about, files)


def _listed(name: str, entry: Mapping[str, Any]) -> ListedFile:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name:
        raise ValueError(f"{name} is no file of the folder")
    kind = next((kind for kind in _HASHES if kind in entry), "sha256")
    return ListedFile(int(entry["bytes"]), kind, str(entry[kind]))


def files_of(folder: Path) -> list[str]:
    """Return the files of a folder and of those in it but manifest and card, as `additional_chat_templates/tool_use.jinja`."""
    names = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if not _is_folder(p))
    return sorted(name for name in names if name not in (MANIFEST, CARD))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def write_manifest(folder: Path, about: Mapping[str, Any]) -> str:
    """Write `manifest.json` with every file of the folder; return its SHA-256."""
    names = files_of(folder)
    files = dict(zip(names, each_file(_entry, [folder / name for name in names]), strict=True))
    document = {"format": _FORMAT, **about, "files": files}
    data = (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
    (folder / MANIFEST).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def _entry(path: Path) -> dict[str, Any]:
    """Return a file's entry in a manifest; the file is read once for all checksums."""
    size = path.stat().st_size
    sums = {kind: make() for kind, (_, make) in _HASHES.items()}
    with path.open("rb") as file:
        for block in blocks(file, size, memoryview(bytearray(BLOCK))):
            for each in sums.values():
                each.update(block)
    return {"bytes": size, **{kind: each.hexdigest() for kind, each in sums.items()}}


def each_file(read: Callable[[_F], _R], files: Sequence[_F]) -> list[_R]:
    """Return the results of `read` for files, which are read in threads: checksums release the interpreter's lock."""
    with ThreadPoolExecutor(min(_PARALLEL, os.cpu_count() or 1)) as threads:
        return list(threads.map(read, files))


def blocks(file: BufferedReader, count: int, space: memoryview) -> Iterator[memoryview]:
    """Yield the next `count` bytes of a file in blocks that reuse `space`; stop where the file ends."""
    while count:
        part = space[: min(count, len(space))]
        if file.readinto(part) < len(part):
            return
        yield part
        count -= len(part)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the fields of a folder's manifest. Raises as `load_manifest`."""
    return dict(load_manifest(folder).about)


def verify_manifest(folder: Path, *, contents: bool = True) -> str:
    """Check a folder with `Manifest.check_whole`; return the digest of its manifest."""
    manifest = load_manifest(folder)
    manifest.check_whole(contents=contents)
    return manifest.digest
