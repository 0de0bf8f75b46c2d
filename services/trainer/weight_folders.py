"""Folders that are written aside, named when they are whole, and checked by a manifest. No torch.

    <parent>/v000012/
        ...                  the files of the version
        manifest.json        what it is, and what every other file has to be

A folder gets its name by a rename after everything in it is on the disk, so a folder that has its name is whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error
from triforge.store.manifests import load_manifest, write_manifest

_READABLE = (
    0o644  # safetensors writes files that only their owner reads; engines may run as someone else
)
_VERSION = re.compile(r"v(\d{6,})")


def version_name(version: int) -> str:
    """Folder name of a version, `v000012`."""
    return f"v{version:06d}"


@contextlib.contextmanager
def atomic_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Fill a folder aside and give it its name when the body ends well; nothing is left of it otherwise.

    Args:
        target: the final name.
        replace: an older folder of that name is removed first; otherwise it is refused.

    Raises:
        WeightsError: the folder exists.
        StorageError: disk full or no permission.
    """
    if target.exists() and not replace:
        raise WeightsError(f"{target}: given a folder that exists, expected a new one")
    aside = target.with_name(f".aside-{target.name}-{uuid.uuid4().hex[:8]}")
    try:
        aside.mkdir(parents=True)
        yield aside
        for path in sorted(aside.iterdir()):
            path.chmod(_READABLE)
            _sync(path)
        _sync(aside)
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise storage_error("write", str(target), error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(parent: Path) -> None:
    """Remove what writers that were killed left aside; call only as the folder's single writer."""
    for path in parent.glob(".aside-*"):
        shutil.rmtree(path, ignore_errors=True)


# ---- versions ----


def versions(parent: Path) -> list[int]:
    """The published versions below a folder `<run>/<role>`, oldest first, by their folders' names alone.

    No manifest is read: a damaged version that nobody needs any more must not stand in the way of the others.
    """
    if not parent.is_dir():
        return []
    names = (_VERSION.fullmatch(path.name) for path in parent.iterdir())
    return sorted(int(match[1]) for match in names if match)


def prune(parent: Path, *, newest: int, keep: int) -> None:
    """Delete all but the `keep` newest versions up to `newest`.

    At least two stay: the newest one is announced but may not be committed yet, and the one before it may still serve.
    """
    held = [v for v in versions(parent) if v <= newest]
    for version in held[: -max(2, keep)]:
        shutil.rmtree(parent / version_name(version), ignore_errors=True)


def copy_version(parent: Path, *, old: int, new: int, about: Mapping[str, Any]) -> tuple[Path, str]:
    """The files of a version once more, under another number; they take no space on the disk where links can be made.

    Args:
        parent: holds the versions.
        old: the version to repeat.
        new: its new number.
        about: fields of the manifest that change.

    Returns:
        The new folder and its manifest's digest.

    Raises:
        WeightsError: the old version is gone or damaged, or the new one is there.
        StorageError: disk full or no permission.
    """
    source = parent / version_name(old)
    if not source.is_dir():
        held = ", ".join(map(str, versions(parent))) or "none"
        raise WeightsError(
            f"{source}: not found; versions on the disk: {held}; run.keep_checkpoints says how many are kept"
        )
    known = load_manifest(source)
    known.check(contents=True, strangers=False)
    target = parent / version_name(new)
    with atomic_folder(target) as folder:
        for name in known.files:
            _link(source / name, folder / name)
        fields = {
            key: value for key, value in known.about.items() if key not in ("format", "files")
        }
        digest = write_manifest(folder, fields | dict(about))
    return target, digest


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
