"""The artifact store: large payloads as files under one root, a local folder or any fsspec URL.

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
_FILE = "a file lies where a folder should; move it away or change TRIFORGE_ARTIFACTS_URL"
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
    """Say in one sentence what could not be done, where and why."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return StorageError(f"cannot {action} {where}: {reason}")


class ArtifactStore:
    """Files below one root. Methods raise StorageError (disk full, no permission) or UnavailableError (no answer).

    Names are relative paths with forward slashes (`rows/run/00001-policy.parquet`); wherever a name is expected, the URI
    that `write` returned works as well. `url` is a local folder (created on first write) or an fsspec URL such as
    `s3://bucket/prefix`. Engines load weights from disks, so beside a URL stands the folder for them:
    `s3://bucket/prefix#/data/artifacts`.
    """

    def __init__(self, url: str) -> None:
        address, _, beside = url.partition("#") if "://" in url else (url, "", "")
        try:
            # Other processes write as well, so what was listed once is not believed.
            found, root = fsspec.core.url_to_fs(address, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StorageError(
                f"TRIFORGE_ARTIFACTS_URL {url!r}: given a URL that fsspec cannot open ({error}), expected a folder or a "
                "URL whose driver is installed (s3:// needs s3fs)"
            ) from error
        self._fs: Any = found
        self.is_local = isinstance(found, LocalFileSystem)
        self.root = str(Path(root).resolve()) if self.is_local else str(root).rstrip("/")
        # Where folders lie that are read by path; None where there is no such place.
        self._folder = Path(self.root) if self.is_local else Path(beside) if beside else None
        if self._folder is not None and not self._folder.is_absolute():
            raise StorageError(
                f"TRIFORGE_ARTIFACTS_URL {url!r}: given the relative folder {beside!r}, expected one that begins with /"
            )

    def uri(self, name: str) -> str:
        """The URI of a name: a plain absolute path when the store is local."""
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
        """Errors of a driver leave as ours; a missing file is for the caller to judge."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(action, path, error) from error
        except Exception as error:  # the border: drivers of object stores have errors of their own
            if self.is_local:
                raise
            raise UnavailableError(
                f"cannot {action} {path}: the artifact store does not answer ({type(error).__name__}: {error})"
            ) from error

    def write(self, name: str, data: bytes) -> str:
        """Write a file, replacing what was there; returns its URI."""
        path = self._path(name)
        try:
            with self._doing("write", path):
                if self.is_local:
                    _write_local(Path(path), data)
                else:
                    self._fs.pipe_file(path, data)
        except FileNotFoundError as error:  # the bucket, or a folder that somebody has just removed
            raise storage_error("write", path, error) from error
        return self.uri(name)

    def read(self, name: str) -> bytes:
        """The content of a file; NotFoundError if there is none."""
        path = self._path(name)
        try:
            with self._doing("read", path):
                return cast("bytes", self._fs.cat_file(path))
        except FileNotFoundError:
            raise NotFoundError(f"artifact {path}: not found; was it pruned or moved?") from None

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of this name."""
        path = self._path(name)
        with self._doing("look for", path):
            return bool(self._fs.exists(path))

    def delete(self, name: str) -> None:
        """Delete a file or folder; nothing happens when it is not there."""
        path = self._path(name)
        with contextlib.suppress(FileNotFoundError), self._doing("delete", path):
            self._fs.rm(path, recursive=True)

    def try_out(self, *, writes: bool = True, folders: bool = True) -> None:
        """Find out now, and not at a run's first write, whether the store can be used; leaves nothing behind. Blocking.

        A full disk is passed over: who does not start because of it cannot say so either. A process that only reads
        (`writes` false) is content with a place where nothing lies yet; `folders` checks the folder beside an object store.
        """
        places = {self._folder} if folders and self._folder is not None else set()
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
        """Where a file or folder lies on this disk, for engines; StorageError if no local folder is named."""
        if self._folder is None:
            raise StorageError(
                f"{self.uri(name)}: model folders must lie on a disk that trainer and engines share; given the store "
                f"{self.root}, expected TRIFORGE_ARTIFACTS_URL to be a folder, or to name one behind a # "
                "(s3://bucket/prefix#/data/artifacts)"
            )
        return self._folder / self._inner(name)


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
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # somebody can free space while it runs
            raise storage_error("write to", place, error) from error
    try:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            next(entries, None)
    except OSError as error:
        raise storage_error("read", place, error) from error
