"""Copies on the disk of versions that are written to memory: TRIFORGE_ARTIFACTS_URL is a folder and `#/dev/shm/...`.

A version is copied when it has a checkpoint, when it is to stay, and when its run ends; a machine that has started again brings
the copies back to memory before a run goes on.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from triforge.errors import WeightsError
from triforge.store.artifacts import ArtifactStore
from triforge.store.manifests import load_manifest
from triforge.store.weight_folders import aside, place, version_name, versions


def copy_of(store: ArtifactStore, version: Path) -> Path:
    """Return where a version stays when the machine ends: the version itself where versions are not written to memory."""
    memory = store.local_path("weights")
    if store.in_memory and version.is_relative_to(memory):
        return Path(store.root) / "weights" / version.relative_to(memory)
    return version


def keep_copy(store: ArtifactStore, version: Path) -> None:
    """Copy a version to the disk unless it is there. StorageError: disk full or no permission."""
    target = copy_of(store, version)
    if target == version or (target.is_dir() and _digest(target) == _digest(version)):
        return
    shutil.rmtree(target, ignore_errors=True)  # of a version that was written again
    _copy(version, target)


def bring_back(store: ArtifactStore, run_id: str, role: str) -> None:
    """Copy versions of a run to memory that are on the disk alone. StorageError: the memory is full."""
    memory = store.local_path(f"weights/{run_id}/{role}")
    copies = copy_of(store, memory)
    if copies != memory:
        for name in map(version_name, {*versions(copies)} - {*versions(memory)}):
            _copy(copies / name, memory / name)


def _copy(source: Path, target: Path) -> None:
    with aside(target.parent) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        place(folder, target)


def _digest(folder: Path) -> str:
    with contextlib.suppress(WeightsError):
        return load_manifest(folder).digest
    return ""
