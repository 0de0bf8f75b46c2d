"""Whether the weights that a document names, or that serve now, can be read on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

from triforge.config import RunConfig
from triforge.doctor.findings import Finding, bad, ok
from triforge.errors import TriforgeError
from triforge.store.tensor_files import read_folder

_RENDERS = ("tokenizer.json", "tokenizer_config.json")


def models(config: RunConfig) -> list[Finding]:
    """The folders of the three roles."""
    found = []
    for role in ("policy", "reward", "rewriter"):
        path = getattr(config.models, role).path
        if path:
            found.append(weights(f"models.{role}.path", Path(path)))
    return found


def weights(what: str, folder: Path) -> Finding:
    """A model folder: its config, its tokenizer, every tensor where the headers say.

    Args:
        what: names the option or the service, for the report.
        folder: the folder.
    """
    mend = (
        f"point {what} at a whole model folder in the form of Hugging Face, readable by this user"
    )
    try:
        with os.scandir(folder):  # it is there, and may be looked into
            pass
        missing = [name for name in ("config.json", *_RENDERS) if not (folder / name).is_file()]
        if missing:
            return bad(f"weights of {what}", f"{folder}: lacks {', '.join(missing)}", mend)
        json.loads((folder / "config.json").read_bytes())
        tensors = read_folder(folder)
    except (OSError, ValueError, TriforgeError) as error:
        said = error.detail if isinstance(error, TriforgeError) else f"{folder}: {_why(error)}"
        return bad(f"weights of {what}", said, mend)
    if not tensors:
        return bad(f"weights of {what}", f"{folder}: holds no safetensors file", mend)
    return ok(f"weights of {what}", f"{folder}: {len(tensors)} tensors")


def _why(error: OSError | ValueError) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
