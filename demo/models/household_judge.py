"""The judge of household tasks that experiments begin with; `demo/judge/README.md` says how it was made."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

from demo.settings import ROOT
from demo.warm_start import alone
from triforge.cli.model_folders import cache_folder
from triforge.store.manifests import write_manifest
from triforge.store.weight_folders import atomic_folder

FOLDER: Final = ROOT / "demo" / "judge"
_TENSORS: Final = "model.safetensors"
_KEPT: Final = (
    "chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip


def version() -> str:
    """Return the short name of the judge's weights."""
    return hashlib.sha256((FOLDER / _TENSORS).read_bytes()).hexdigest()[:12]


def household_judge() -> Path:
    """Return the folder of the judge in the cache: a whole model folder in float32."""
    folder = cache_folder() / "demo" / f"judge-{version()}"
    with alone(folder):
        if not folder.is_dir():
            with atomic_folder(folder) as made:
                _copy(FOLDER, made, "float32")
                write_manifest(made, {"kind": "tiny"})
    return folder


def keep(model: Path) -> None:
    """Take a judge's model folder as the one that is begun with: half of its size, as float16."""
    FOLDER.mkdir(exist_ok=True)
    _copy(model, FOLDER, "float16")


def _copy(source: Path, target: Path, dtype: str) -> None:
    import torch  # noqa: PLC0415  slow, and seldom needed

    from services.trainer.learner.weights.tensors import load_tensors, save_tensors  # noqa: PLC0415

    for name in _KEPT:
        shutil.copy(source / name, target)
    tensors = load_tensors(source / _TENSORS)
    wanted = getattr(torch, dtype)
    save_tensors({name: one.to(wanted) for name, one in tensors.items()}, target / _TENSORS)
