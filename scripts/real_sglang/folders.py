"""Model folders for a conversation with an engine: the one it serves, another one, and broken ones."""

from __future__ import annotations

import json
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


def untied(start: Path, folder: Path) -> Path:
    """Return a copy with an output layer of its own: vLLM on a CPU keeps the old one of tied embeddings when it loads others."""
    _without_weights(start, folder)
    tensors = load_file(start / WEIGHTS)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return folder


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
