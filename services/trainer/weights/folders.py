"""Folders that are written aside, named when they are whole, and checked by a manifest. No torch.

    <parent>/v000012/
        ...                  the files of the version
        manifest.json        what it is, and the SHA-256 of every other file

A folder gets its name by a rename after everything in it is on the disk, so a folder that has its name is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error

MANIFEST = "manifest.json"
_READABLE = (
    0o644  # safetensors writes files that only their owner reads; engines may run as someone else
)
_FORMAT = "triforge-folder/1"
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


# ---- manifests ----


def sha256(path: Path) -> str:
    """SHA-256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, about: Mapping[str, Any]) -> str:
    """Write `manifest.json` over everything that lies in the folder now; returns the manifest's own SHA-256."""
    files = {
        path.name: {"sha256": sha256(path), "bytes": path.stat().st_size}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    document = {"format": _FORMAT, **about, "files": files}
    (folder / MANIFEST).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    return sha256(folder / MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, without checking the files.

    Raises:
        WeightsError: there is none, or it was not written by triforge.
    """
    try:
        document = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        raise WeightsError(
            f"{folder}: no {MANIFEST}; expected a folder published by triforge"
        ) from None
    except OSError as error:  # of the disk or the network, not of the folder: it may be whole
        raise storage_error("read", str(folder / MANIFEST), error) from error
    except ValueError as error:
        raise WeightsError(f"{folder}: {MANIFEST} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise WeightsError(f"{folder}: {MANIFEST} is not of the format {_FORMAT!r}")
    return document


def verify_manifest(folder: Path, *, contents: bool = True) -> str:
    """Check every file of a folder against its manifest.

    Args:
        folder: the folder.
        contents: also compare the SHA-256 of every file; without, names and sizes only.

    Returns:
        The SHA-256 of the manifest, the digest under which the version is announced.

    Raises:
        WeightsError: a file is missing, truncated, changed, or not listed.
    """
    files: dict[str, Any] = read_manifest(folder)["files"]
    problems = [_problem(folder / name, entry, contents) for name, entry in files.items()]
    strangers = {path.name for path in folder.iterdir()} - set(files) - {MANIFEST}
    problems += [f"{name} is not in the manifest" for name in sorted(strangers)]
    found = tuple(problem for problem in problems if problem)
    if found:
        raise WeightsError(f"{folder}: {'; '.join(found)}", problems=found)
    return sha256(folder / MANIFEST)


def _problem(path: Path, entry: Mapping[str, Any], contents: bool) -> str:
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"{path.name} has {size} bytes, expected {entry['bytes']}"
    if contents and sha256(path) != entry["sha256"]:
        return f"{path.name} has changed (its SHA-256 is another)"
    return ""


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
    verify_manifest(source)
    known = read_manifest(source)
    target = parent / version_name(new)
    with atomic_folder(target) as folder:
        for name in known["files"]:
            _link(source / name, folder / name)
        fields = {key: value for key, value in known.items() if key not in ("format", "files")}
        digest = write_manifest(folder, fields | dict(about))
    return target, digest


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
