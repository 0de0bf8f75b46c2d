"""What a folder should hold: its files with their sizes and checksums, written once and compared by whoever takes it.

    manifest.json    {"format": "triforge-folder/1", ..., "files": {"config.json": {"bytes", "sha256", "xxh3_128"}}}

SHA-256 says for good of which bytes a version was made: its digest is the SHA-256 of its manifest. XXH3-128 is what is
compared, because a file's takes a small part of the time. It finds what a disk or a copy has damaged; it is not made to
withstand somebody who forges a file. Manifests from before have SHA-256 alone, and are compared by that.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, TypeVar

import xxhash
from pydantic_core import from_json

from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error
from triforge.store.tensor_files import regular_size

MANIFEST: Final = "manifest.json"
BLOCK: Final = 1 << 20  # bytes; what is read stays in a core's cache while it is looked at
_SIDE_BY_SIDE: Final = 8  # files that are read at once
_FORMAT: Final = "triforge-folder/1"
# By their keys in a manifest, the one that is compared first: how it is called, and what makes one.
_SUMS: Final[Mapping[str, tuple[str, Any]]] = {
    "xxh3_128": ("XXH3-128", xxhash.xxh3_128),
    "sha256": ("SHA-256", hashlib.sha256),
}

_F = TypeVar("_F")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Listed:
    """What a manifest says of one file: its size in bytes and a checksum as hex, `kind` is its key."""

    size: int
    kind: str
    checksum: str


class Reading:
    """The checksum of a file that somebody reads: every byte goes through `update`, in order, and `problem` compares."""

    def __init__(self, name: str, listed: Listed) -> None:
        self._name, self._listed = name, listed
        self._called, make = _SUMS[listed.kind]
        self._hash = make()

    def update(self, data: memoryview, /) -> None:
        """More bytes of the file."""
        self._hash.update(data)

    def problem(self) -> str:
        """What is wrong with the bytes so far; empty if they are the file that was listed."""
        found = self._hash.hexdigest()
        if found == self._listed.checksum:
            return ""
        return (
            f"{self._name} has changed after it was published: its {self._called} is {found}, {MANIFEST} says "
            f"{self._listed.checksum}"
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest, read and not yet compared with what lies beside it.

    Attributes:
        digest: its own SHA-256, under which the version is announced.
    """

    folder: Path
    digest: str
    about: Mapping[str, Any]
    files: Mapping[str, Listed]

    def problem(self, name: str, *, contents: bool) -> str:
        """What is wrong with a listed file, with its bytes if `contents`, else with its size; empty if nothing is."""
        path, listed = self.folder / name, self.files[name]
        try:
            if not path.is_file():
                return f"{name} is missing, {MANIFEST} names it"
            size = path.stat().st_size
            if size != listed.size:
                return f"{name} has {size} bytes, expected {listed.size}"
            if not contents:
                return ""
            reading = Reading(name, listed)
            with path.open("rb") as file:
                for block in blocks(file, size, memoryview(bytearray(BLOCK))):
                    reading.update(block)
        except FileNotFoundError:  # a moment ago it was there
            return f"{name} is missing, {MANIFEST} names it"
        except OSError as error:  # of the disk or the network, not of the folder: it may be whole
            raise storage_error("read", str(path), error) from error
        return reading.problem()

    def check(self, *, contents: bool, but: Collection[str] = frozenset()) -> None:
        """Pass if every listed file, but some, is there as it was listed; see `problem`.

        Raises:
            WeightsError: a file is missing, truncated or changed; the sentence names all such.
            StorageError: a file cannot be read.
        """
        self._refuse(self._problems([n for n in self.files if n not in but], contents=contents))

    def check_whole(self, *, contents: bool) -> None:
        """`check`, and no other file may lie there."""
        problems = self._problems([*self.files], contents=contents)
        more = {path.name for path in self.folder.iterdir()} - set(self.files) - {MANIFEST}
        self._refuse([*problems, *(f"{name} is not in the manifest" for name in sorted(more))])

    def _problems(self, names: Sequence[str], *, contents: bool) -> list[str]:
        if not contents:
            return [self.problem(name, contents=False) for name in names]
        return each_file(lambda name: self.problem(name, contents=True), names)

    def _refuse(self, problems: list[str]) -> None:
        if found := tuple(problem for problem in problems if problem):
            raise WeightsError(f"{self.folder}: {'; '.join(found)}", problems=found)


def load_manifest(folder: Path, *, announced: str = "") -> Manifest:
    """The manifest of a folder; the files are not looked at. It has to have the digest `announced`, unless that is empty.

    Raises:
        WeightsError: there is none, it is another one than was announced, or not one of triforge's.
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
    # Of one that has the digest that was announced, it is known without a name of its format what it is.
    if not isinstance(about, dict) or about.get("format", announced and _FORMAT) != _FORMAT:
        raise WeightsError(f"{folder}: {MANIFEST} is not of the format {_FORMAT!r}")
    try:
        files = {name: _listed(name, entry) for name, entry in about.get("files", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{folder}: {MANIFEST}: expected files by name, each with bytes and sha256 ({error!r:.80})"
        ) from error
    return Manifest(folder, digest, about, files)


def _listed(name: str, entry: Mapping[str, Any]) -> Listed:
    if Path(name).name != name:
        raise ValueError(f"{name} is no file of the folder")
    kind = "xxh3_128" if "xxh3_128" in entry else "sha256"
    return Listed(int(entry["bytes"]), kind, str(entry[kind]))


def write_manifest(folder: Path, about: Mapping[str, Any]) -> str:
    """Write `manifest.json` over everything that lies in the folder now; returns the manifest's own SHA-256."""
    paths = [path for path in sorted(folder.iterdir()) if path.name != MANIFEST]
    files = dict(zip((path.name for path in paths), each_file(_entry, paths), strict=True))
    document = {"format": _FORMAT, **about, "files": files}
    data = (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
    (folder / MANIFEST).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def _entry(path: Path) -> dict[str, Any]:
    """What a manifest says of a file, which is read once for all checksums."""
    size = path.stat().st_size
    sums = {kind: make() for kind, (_, make) in _SUMS.items()}
    with path.open("rb") as file:
        for block in blocks(file, size, memoryview(bytearray(BLOCK))):
            for each in sums.values():
                each.update(block)
    return {"bytes": size, **{kind: each.hexdigest() for kind, each in sums.items()}}


def each_file(read: Callable[[_F], _R], files: Sequence[_F]) -> list[_R]:
    """What `read` says of each of some files, which are read side by side: checksums let other threads run."""
    with ThreadPoolExecutor(min(_SIDE_BY_SIDE, os.cpu_count() or 1)) as threads:
        return list(threads.map(read, files))


def blocks(file: BufferedReader, count: int, space: memoryview) -> Iterator[memoryview]:
    """The next `count` bytes of a file, in parts that fill `space`, each good until the next; ends where the file does."""
    while count:
        part = space[: min(count, len(space))]
        if file.readinto(part) < len(part):
            return
        yield part
        count -= len(part)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The fields of a folder's manifest, see `load_manifest`."""
    return dict(load_manifest(folder).about)


def verify_manifest(folder: Path, *, contents: bool = True) -> str:
    """Check a folder against its manifest, see `Manifest.check_whole`; returns the digest under which it is announced."""
    manifest = load_manifest(folder)
    manifest.check_whole(contents=contents)
    return manifest.digest
