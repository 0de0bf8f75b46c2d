"""The artifact store: large payloads as files below one root, a local folder or any fsspec URL.

Every write is atomic: a reader sees the whole file or none. Locally that is a temporary file, fsync and a rename; object
stores promise it for a single put.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from triforge.errors import InputError, NotFoundError, StorageError, UnavailableError

_DENIED = "permission denied; give this process write access or change TRIFORGE_ARTIFACTS_URL"
_FILE = "a file has the name of a folder; move it away or change TRIFORGE_ARTIFACTS_URL"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REASONS = {
    errno.ENOSPC: "the disk is full; free space or point TRIFORGE_ARTIFACTS_URL elsewhere",
    errno.EDQUOT: "the disk quota is used up; free space or point TRIFORGE_ARTIFACTS_URL elsewhere",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EEXIST: _FILE,
    errno.ENOTDIR: _FILE,
    errno.EIO: "the disk does not answer; look at it and at its mount, or change TRIFORGE_ARTIFACTS_URL",
    errno.ESTALE: "the volume that was mounted there is gone; mount it again and restart this process",
    errno.EROFS: "the file system is read-only; point TRIFORGE_ARTIFACTS_URL elsewhere",
}


def storage_error(action: str, where: str, error: OSError) -> StorageError:
    """Return an error with the failed action, its place and the reason."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return StorageError(f"cannot {action} {where}: {reason}")


class ArtifactStore:
    """Files below one root. Methods raise StorageError (disk full, no permission) or UnavailableError (no answer).

    Names are relative paths with forward slashes (`rows/run/00001-policy.parquet`); the URI that `write` returned is accepted
    as a name. `url` is a local folder (created on first write) or an fsspec URL such as `s3://bucket/prefix`. Engines load
    weights from disks, so a folder for weights follows such a URL: `s3://bucket/prefix#/data/artifacts`. After a local folder
    it is for versions alone, which are then `in_memory`: `/data/artifacts#/dev/shm/triforge` (`triforge.store.copies`).
    """

    def __init__(self, url: str) -> None:
        address, mark, weights = url.partition("#" if "://" in url else "#/")
        weights = mark[1:] + weights
        try:
            # Other processes write too: listings are not cached.
            self._fs: Any
            self._fs, root = fsspec.core.url_to_fs(address, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StorageError(
                f"TRIFORGE_ARTIFACTS_URL {url!r}: given a URL that fsspec cannot open ({error}), expected a folder or a "
                "URL whose driver is installed (s3:// needs s3fs)"
            ) from error
        self.is_local = isinstance(self._fs, LocalFileSystem)
        self.root = str(Path(root).resolve()) if self.is_local else str(root).rstrip("/")
        self.in_memory = self.is_local and bool(weights)
        # The folders of versions and of other files that are read by path; None if there are none.
        self._weights = Path(weights or self.root) if self.is_local or weights else None
        self._folder = Path(self.root) if self.is_local else self._weights
        if self._weights is not None and not self._weights.is_absolute():
            raise StorageError(
                f"TRIFORGE_ARTIFACTS_URL {url!r}: given the relative folder {weights!r}, expected one that begins with /"
            )

    def uri(self, name: str) -> str:
        """Return the URI of a name: an absolute path when the store is local."""
        path = self._path(name)
        return path if self.is_local else cast("str", self._fs.unstrip_protocol(path))

    def _path(self, name: str) -> str:
        return f"{self.root}/{self._inner(name)}"

    def _inner(self, name: str) -> str:
        inner = name
        for root in (self.root, "" if self.is_local else self._fs.unstrip_protocol(self.root)):
            if root and name.startswith(root + "/"):
                inner = name[len(root) + 1 :]
        parts = inner.split("/")
        if not inner or "://" in inner or any(part in ("", ".", "..") for part in parts):
            raise InputError(
                f"artifact {name!r}: expected a relative name or a URI below {self.root}, without '..'"
            )
        return inner

    @contextlib.contextmanager
    def _doing(self, action: str, path: str) -> Iterator[None]:
        """Raise a driver's errors as ours; FileNotFoundError is left to the caller."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(action, path, error) from error
        except Exception as error:  # drivers of object stores have errors of their own
            if self.is_local:
                raise
            raise UnavailableError(
                f"cannot {action} {path}: the artifact store does not answer ({type(error).__name__}: {error})"
            ) from error

    def write(self, name: str, data: bytes) -> str:
        """Write a file, replacing an older one; return its URI."""
        path = self._path(name)
        try:
            with self._doing("write", path):
                if self.is_local:
                    _write_local(Path(path), data)
                else:
                    self._fs.pipe_file(path, data)
        except FileNotFoundError as error:  # the bucket, or a folder that was removed meanwhile
            raise storage_error("write", path, error) from error
        return self.uri(name)

    def read(self, name: str) -> bytes:
        """Return the content of a file; NotFoundError if it is missing."""
        path = self._path(name)
        try:
            with self._doing("read", path):
                return cast("bytes", self._fs.cat_file(path))
        except FileNotFoundError:
            raise NotFoundError(f"artifact {path}: not found; was it pruned or moved?") from None

    def exists(self, name: str) -> bool:
        """Return whether there is a file or folder of this name."""
        path = self._path(name)
        with self._doing("look for", path):
            return bool(self._fs.exists(path))

    def delete(self, name: str) -> None:
        """Delete a file or folder; a missing one is no error."""
        path = self._path(name)
        with contextlib.suppress(FileNotFoundError), self._doing("delete", path):
            self._fs.rm(path, recursive=True)

    def try_out(self, *, writes: bool = True, folders: bool = True) -> None:
        """Raise at once the error that a run's first read or write would meet. Blocking.

        A full disk is no error here: space may be freed. `writes` false accepts a place that does not exist yet; `folders`
        false leaves out the folder of weights.
        """
        places = {self._weights} if folders and self._weights is not None else set()
        if self.is_local:
            places.add(Path(self.root))
        else:
            with contextlib.suppress(FileNotFoundError), self._doing("read", self.root):
                self._fs.ls(self.root)
            if writes:
                name = f".tried-{uuid.uuid4().hex}"
                self.write(name, b"")
                self.delete(name)
        for place in places:
            _try_folder(place, writes=writes)

    def local_path(self, name: str) -> Path:
        """Return the path of a file or folder that engines read; StorageError if no local folder is named."""
        inner = self._inner(name)
        folder = self._weights if inner.partition("/")[0] == "weights" else self._folder
        if folder is None:
            raise StorageError(
                f"{self.uri(name)}: model folders must be on a disk that trainer and engines share; given the store "
                f"{self.root}, expected TRIFORGE_ARTIFACTS_URL to be a folder, or to name one after a # "
                "(s3://bucket/prefix#/data/artifacts)"
            )
        return folder / inner


def _write_local(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _try_folder(folder: Path, *, writes: bool) -> None:
    place = f"the artifact store {folder}"
    try:
        if writes:
            folder.mkdir(parents=True, exist_ok=True)
            trial = folder / f".tried-{uuid.uuid4().hex}"
            trial.touch(exist_ok=False)
            trial.unlink()
    except OSError as error:
        if error.errno not in _FULL:
            raise storage_error("write to", place, error) from error
    try:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            next(entries, None)
    except OSError as error:
        raise storage_error("read", place, error) from error
