"""The artifact store: large payloads as files under one root, a local folder or any fsspec URL.

Every write is atomic: a reader sees the whole file or none. Locally that is a temporary file, fsync and a rename; object
stores promise it for a single put.
"""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path
from typing import Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from triforge.errors import InputError, NotFoundError, StorageError

_REASONS = {
    errno.ENOSPC: "the disk is full; free space or point TRIFORGE_ARTIFACTS_URL elsewhere",
    errno.EDQUOT: "the disk quota is used up; free space or point TRIFORGE_ARTIFACTS_URL elsewhere",
    errno.EACCES: "permission denied; give this process write access or change TRIFORGE_ARTIFACTS_URL",
    errno.EPERM: "permission denied; give this process write access or change TRIFORGE_ARTIFACTS_URL",
    errno.EROFS: "the file system is read-only; point TRIFORGE_ARTIFACTS_URL elsewhere",
}


def storage_error(action: str, where: str, error: OSError) -> StorageError:
    """Say in one sentence what could not be done, where and why."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return StorageError(f"cannot {action} {where}: {reason}")


class ArtifactStore:
    """Files below one root.

    Names are relative paths with forward slashes (`rows/run/00001-acts.parquet`); wherever a name is expected, the URI
    that `write` returned works as well.

    Args:
        url: local folder (created on first write) or fsspec URL such as `s3://bucket/prefix`.
    """

    def __init__(self, url: str) -> None:
        try:
            found, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise StorageError(
                f"TRIFORGE_ARTIFACTS_URL {url!r}: given a URL that fsspec cannot open ({error}), expected a folder or a "
                "URL whose driver is installed (s3:// needs s3fs)"
            ) from error
        self._fs: Any = found
        self.is_local = isinstance(found, LocalFileSystem)
        self.root = str(Path(root).resolve()) if self.is_local else str(root).rstrip("/")

    def uri(self, name: str) -> str:
        """The URI of a name: a plain absolute path when the store is local."""
        path = self._path(name)
        return path if self.is_local else cast("str", self._fs.unstrip_protocol(path))

    def _path(self, name: str) -> str:
        inner = name
        for root in (self.root, "" if self.is_local else self._fs.unstrip_protocol(self.root)):
            if root and name.startswith(root + "/"):
                inner = name[len(root) + 1 :]
        parts = inner.split("/")
        if not inner or "://" in inner or any(part in ("", ".", "..") for part in parts):
            raise InputError(
                f"artifact {name!r}: expected a relative name or a URI below {self.root}, without '..'"
            )
        return f"{self.root}/{inner}"

    def write(self, name: str, data: bytes) -> str:
        """Write a file, replacing what was there; returns its URI.

        Raises:
            StorageError: disk full, no permission, store away.
        """
        path = self._path(name)
        try:
            if self.is_local:
                _write_local(Path(path), data)
            else:
                self._fs.pipe_file(path, data)
        except OSError as error:
            raise storage_error("write", path, error) from error
        return self.uri(name)

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            NotFoundError: there is no such file.
            StorageError: no permission, store away.
        """
        path = self._path(name)
        try:
            return cast("bytes", self._fs.cat_file(path))
        except FileNotFoundError:
            raise NotFoundError(f"artifact {path}: not found; was it pruned or moved?") from None
        except OSError as error:
            raise storage_error("read", path, error) from error

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of this name.

        Raises:
            StorageError: no permission, store away.
        """
        path = self._path(name)
        try:
            return bool(self._fs.exists(path))
        except OSError as error:
            raise storage_error("look for", path, error) from error

    def delete(self, name: str) -> None:
        """Delete a file or folder; nothing happens when it is not there.

        Raises:
            StorageError: no permission, store away.
        """
        path = self._path(name)
        try:
            self._fs.rm(path, recursive=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error("delete", path, error) from error

    def local_path(self, name: str) -> Path:
        """Where the file or folder lies on this machine's disk (for engines, which load folders by path).

        Raises:
            StorageError: the store is not a local folder.
        """
        if not self.is_local:
            raise StorageError(
                f"{self.uri(name)}: model folders must lie on a disk that trainer and engines share; given the store "
                f"{self.root}, expected TRIFORGE_ARTIFACTS_URL to be a folder"
            )
        return Path(self._path(name))


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
