"""Folders that are written aside and named when they are whole, checked by a manifest. No torch.

    <parent>/v000012/               weights; a checkpoint's name ends with the beginning of its digest: v000012-5f3a0c1e
        ...                         the files of the version
        manifest.json               what it is, and what every other file has to be

A folder gets its name by one rename after everything in it is on the disk, so a folder that has its name is whole. A name is
given once: of two writers of one version the second finds it taken, and uses what is there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error
from triforge.store.manifests import load_manifest, write_manifest

# safetensors writes files that only their owner reads; engines may run as someone else.
_READABLE = 0o644
_VERSION = re.compile(r"v(\d{6,})(-[0-9a-f]{8})?")
_ABANDONED_S = 3600.0  # nobody writes into a folder aside that was begun before this


def version_name(version: int, digest: str = "") -> str:
    """Folder name of a version, `v000012`; with the digest of its manifest `v000012-5f3a0c1e`."""
    return f"v{version:06d}" + (f"-{digest[:8]}" if digest else "")


def weights_number(folder: Path) -> int | None:
    """The number in the name of a folder of weights; None if it has no such name."""
    match = _VERSION.fullmatch(folder.name)
    return int(match[1]) if match and match[2] is None else None


@contextlib.contextmanager
def aside(parent: Path) -> Iterator[Path]:
    """A new folder beside the final ones, to be filled and given to `place`; nothing is left of it otherwise.

    Raises:
        StorageError: disk full or no permission.
    """
    folder = parent / f".aside-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True)
        begun = folder.stat().st_mtime  # by the clock of the disk: ours may be hours ahead of it
        for left in parent.glob(".aside-*"):  # by writers that were killed
            with contextlib.suppress(FileNotFoundError):
                if left.stat().st_mtime < begun - _ABANDONED_S:
                    shutil.rmtree(left, ignore_errors=True)
        yield folder
    except OSError as error:
        raise storage_error("write", str(parent), error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def place(folder: Path, target: Path) -> bool:
    """Give a folder aside its final name; False if that is taken, and then nothing changes."""
    for path in sorted(folder.iterdir()):
        path.chmod(_READABLE)
        _sync(path)
    _sync(folder)
    try:
        folder.rename(target)
    except OSError:
        if target.exists():
            return False
        raise
    _sync(target.parent)
    return True


@contextlib.contextmanager
def atomic_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Fill a folder aside and give it its name when the body ends well; nothing is left of it otherwise.

    Raises:
        WeightsError: the folder exists, and is not to be replaced.
        StorageError: disk full or no permission.
    """
    taken = WeightsError(f"{target}: given a folder that exists, expected a new one")
    if target.exists() and not replace:
        raise taken
    with aside(target.parent) as folder:
        yield folder
        if replace and target.exists():
            shutil.rmtree(target)
        if not place(folder, target):
            raise taken


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
    found = ((_VERSION.fullmatch(path.name), path) for path in parent.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def versions(parent: Path) -> list[int]:
    """The versions below a folder `<run>/<role>`, oldest first, by their folders' names alone.

    No manifest is read: a damaged version that nobody needs any more must not stand in the way of the others.
    """
    return sorted({version for version, _ in _numbered(parent)})


def find_version(parent: Path, version: int, digest: str) -> Path | None:
    """The folder of a version whose manifest has this digest."""
    for number, path in _numbered(parent):
        with contextlib.suppress(WeightsError):
            if number == version and load_manifest(path).digest == digest:
                return path
    return None


def prune(parent: Path, *, newest: int, keep: int, pinned: int | None = None) -> None:
    """Delete all but the `keep` newest versions up to `newest`, and the one that is `pinned`.

    At least two stay: the newest one is announced but may not be committed yet, and the one before it may still serve.
    """
    held = [v for v in versions(parent) if v <= newest]
    forget(parent, *(v for v in held[: -max(2, keep)] if v != pinned))


def forget(parent: Path, *gone: int) -> None:
    """Delete some versions."""
    for version, path in _numbered(parent):
        if version in gone:
            shutil.rmtree(path, ignore_errors=True)


def copy_version(
    source: Path, named: Callable[[str], Path], about: Mapping[str, Any]
) -> tuple[Path, str]:
    """The files of a version once more, under another name; they take no space on the disk where links can be made.

    `named` gives the new folder by the digest of its manifest, `about` the fields of the manifest that change. Returns the
    new folder and its manifest's digest.

    Raises:
        WeightsError: the old version is gone or damaged, or the new one is there.
        StorageError: disk full or no permission.
    """
    known = load_manifest(source)
    known.check_whole(contents=True)
    with aside(source.parent) as folder:
        for name in known.files:
            try:
                os.link(source / name, folder / name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(source / name, folder / name)
        fields = {k: value for k, value in known.about.items() if k not in ("format", "files")}
        digest = write_manifest(folder, fields | dict(about))
        target = named(digest)
        if not place(folder, target):
            raise WeightsError(f"{target}: given a folder that exists, expected a new one")
    return target, digest
