"""Model folders for a conversation with an engine: the one it serves, another one, and broken ones."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from scripts.real_sglang.exchanges import Folders

WEIGHTS = "model.safetensors"


def folders_of(start: Path, service: Path) -> Folders:
    """Return the folders of the conversation: `start`, a copy of it whose last norm is twice as large, and none."""
    other = _without_weights(start, service / "other")
    tensors = load_file(start / WEIGHTS)
    tensors["model.norm.weight"] = 2 * tensors["model.norm.weight"]
    save_file(tensors, other / WEIGHTS, metadata={"format": "pt"})
    return Folders(start=start, other=other, missing=service / "missing")


def truncated(start: Path, folder: Path) -> Path:
    """Return a copy whose weight file ends in the middle."""
    _without_weights(start, folder)
    whole = (start / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    return folder


def _without_weights(start: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in start.iterdir():
        if file.suffix != ".safetensors" and file.name != "manifest.json":
            shutil.copyfile(file, folder / file.name)
    return folder
