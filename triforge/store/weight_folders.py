"""Folders that are written aside and renamed when they are whole, checked by a manifest. No torch.

    <parent>/v000012/               weights; the name of a checkpoint ends with the beginning of its digest: v000012-5f3a0c1e
        ...                         the files of the version
        manifest.json               the version, and the checksums of all other files

A folder gets its name by one rename after all its files are on the disk, so a folder that has its name is whole. A name is
given once: the second of two writers of a version uses the folder of the first. One that was damaged since is renamed to
`unusable-v000012`, and its version can be written again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error
from triforge.store.manifests import load_manifest, write_manifest

_READABLE = (
    0o644  # safetensors writes files that only their owner reads; engines may run as another user
)
_VERSION = re.compile(r"v(\d{6,})(-[0-9a-f]{8})?")
_UNUSABLE = "unusable-"  # before the name of a version that was set aside
_ABANDONED_S = 3600.0  # age of a folder aside whose writer was killed


def version_name(version: int, digest: str = "") -> str:
    """Return the folder name of a version, `v000012`; with the digest of its manifest `v000012-5f3a0c1e`."""
    return f"v{version:06d}" + (f"-{digest[:8]}" if digest else "")


def weights_number(folder: Path) -> int | None:
    """Return the number in the name of a folder of weights; None if it has another name."""
    match = _VERSION.fullmatch(folder.name)
    return int(match[1]) if match and match[2] is None else None


@contextlib.contextmanager
def aside(parent: Path) -> Iterator[Path]:
    """Make a folder next to the final ones, to be filled and passed to `place`; it is deleted otherwise.

    Raises:
        StorageError: disk full or no permission.
    """
    folder = parent / f".aside-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True)
        begun = folder.stat().st_mtime  # by the disk's clock, which may differ from ours by hours
        for left in parent.glob(".aside-*"):
            with contextlib.suppress(FileNotFoundError):
                if left.stat().st_mtime < begun - _ABANDONED_S:
                    shutil.rmtree(left, ignore_errors=True)
        yield folder
    except OSError as error:
        raise storage_error("write", str(parent), error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def place(folder: Path, target: Path) -> bool:
    """Give a folder aside its final name; return False, without a change, if the name exists."""
    _settle(folder)
    try:
        folder.rename(target)
    except OSError:
        if target.exists():
            return False
        raise
    _sync(target.parent)
    return True


def _settle(folder: Path) -> None:
    """Make the files of a folder readable, and wait until they are on the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            path.chmod(_READABLE)
        _sync(path)
    _sync(folder)


@contextlib.contextmanager
def atomic_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Fill a folder aside, and give it its name when the body succeeds; it is deleted otherwise.

    Raises:
        WeightsError: the folder exists, and `replace` is false.
        StorageError: disk full or no permission.
    """
    if target.exists() and not replace:
        raise _exists(target)
    with aside(target.parent) as folder:
        yield folder
        if replace and target.exists():
            _settle(folder)  # or a full disk would leave neither
            shutil.rmtree(target)
        if not place(folder, target):
            raise _exists(target)


def _exists(target: Path) -> WeightsError:
    return WeightsError(f"{target}: given a folder that exists, expected a new one")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- versions ----


def _numbered(parent: Path) -> list[tuple[int, Path]]:
    if not parent.is_dir():
        return []
    matches = ((_VERSION.fullmatch(path.name), path) for path in parent.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def versions(parent: Path) -> list[int]:
    """Return the versions below a folder `<run>/<role>`, oldest first, by the names of their folders.

    No manifest is read: a damaged old version does not affect the others.
    """
    return sorted({version for version, _ in _numbered(parent)})


def checkpoint_of(weights: Path, checkpoints: Path) -> Path | None:
    """Return the checkpoint of a version: the one that its manifest names, or that names it."""
    manifest = load_manifest(weights)
    for number, path in _numbered(checkpoints):
        with contextlib.suppress(WeightsError):
            if number == weights_number(weights):
                found = load_manifest(path)
                if (
                    manifest.about.get("checkpoint") == found.digest
                    or found.about.get("weights") == manifest.digest
                ):
                    return path
    return None


def prune(parent: Path, *, newest: int, keep: int, pinned: Collection[int] = ()) -> None:
    """Delete all but the `keep` newest versions up to `newest`, and those that are `pinned`.

    At least two remain: the newest one may not be committed yet, and the one before it may still serve.
    """
    held = [v for v in versions(parent) if v <= newest]
    forget(parent, *(v for v in held[: -max(2, keep)] if v not in pinned))
    for path in parent.glob(f"{_UNUSABLE}*"):
        match = _VERSION.fullmatch(path.name.removeprefix(_UNUSABLE))
        if match and int(match[1]) < min(held[-max(2, keep) :], default=0):
            _remove(path)


def forget(parent: Path, *numbers: int) -> None:
    """Delete versions."""
    for version, path in _numbered(parent):
        if version in numbers:
            _remove(path)


def set_aside(folder: Path) -> Path:
    """Rename a version that cannot be used, or what stands in its place, to `unusable-v000012`; return the new path.

    `prune` deletes it when versions of its age go.
    """
    target = folder.with_name(f"{_UNUSABLE}{folder.name}")
    _remove(target)
    folder.rename(target)
    _sync(folder.parent)
    return target


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def copy_version(
    source: Path, named: Callable[[str], Path], about: Mapping[str, Any]
) -> tuple[Path, str]:
    """Copy a version to another name, by hard links where the file system has them.

    `named` returns the new folder from the digest of its manifest; `about` has the fields of the manifest that change. Return
    the new folder and its manifest's digest.

    Raises:
        WeightsError: the old version is missing or damaged, or the new one exists.
        StorageError: disk full or no permission.
    """
    manifest = load_manifest(source)
    manifest.check_whole(contents=True)
    with aside(source.parent) as folder:
        for name in manifest.files:
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            try:
                os.link(source / name, folder / name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(source / name, folder / name)
        fields = {k: value for k, value in manifest.about.items() if k not in ("format", "files")}
        digest = write_manifest(folder, fields | dict(about))
        target = named(digest)
        if not place(folder, target):
            raise _exists(target)
    return target, digest
