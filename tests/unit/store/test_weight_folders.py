"""Replacement of a folder: the old one stays until the new one is on the disk."""

import errno
import os
from pathlib import Path

import pytest

from triforge.errors import StorageError, WeightsError
from triforge.store.weight_folders import atomic_folder


def _write(target: Path, text: str, *, replace: bool = False) -> None:
    with atomic_folder(target, replace=replace) as folder:
        (folder / "weights").write_text(text)


def test_replaced_folder(tmp_path: Path) -> None:
    target = tmp_path / "model"
    _write(target, "old")
    with pytest.raises(WeightsError):
        _write(target, "new")
    _write(target, "new", replace=True)
    assert (target / "weights").read_text() == "new"
    assert [*tmp_path.iterdir()] == [target]


def test_full_disk_keeps_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"
    _write(target, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError):
        _write(target, "new", replace=True)
    assert (target / "weights").read_text() == "old"
    assert [*tmp_path.iterdir()] == [target]
