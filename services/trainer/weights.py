"""Weight versions on disk: one complete model folder a version, written aside, checked by a manifest, never changed.

    <artifacts>/weights/<run>/<role>/v000012/
        config.json, tokenizer files, chat template     copied from the run's initial folder
        model.safetensors                               float32
        manifest.json                                   what it is, and the SHA-256 of every other file

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

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error

MANIFEST = "manifest.json"
TENSORS = "model.safetensors"
_READABLE = (
    0o644  # safetensors writes files that only their owner reads; engines may run as someone else
)
_FORMAT = "triforge-folder/1"
_COPIED = {".json", ".jinja", ".txt", ".model", ".tiktoken"}
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
    except SafetensorError as error:
        raise storage_error("write", str(target), OSError(str(error))) from error
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
    except (OSError, ValueError) as error:
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


# ---- model folders ----


def copy_companions(source: Path, target: Path) -> None:
    """Copy config, tokenizer and chat template, everything of a model folder but its weights."""
    for path in sorted(source.iterdir()):
        index = path.name.endswith(".index.json")
        if path.is_file() and path.suffix in _COPIED and path.name != MANIFEST and not index:
            shutil.copyfile(path, target / path.name)


def _stored(model: nn.Module) -> dict[str, Tensor]:
    """The tensors to store: parameters by name (tied ones once) and persistent buffers, float32 on the CPU."""
    named: dict[str, Tensor] = dict(model.named_parameters())
    persistent = set(model.state_dict())
    named |= {name: tensor for name, tensor in model.named_buffers() if name in persistent}
    return {
        name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in named.items()
    }


def write_model(model: nn.Module, source: Path, folder: Path) -> None:
    """Fill `folder` with a complete model folder: companions of `source`, weights of `model` in float32."""
    copy_companions(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "float32"
    if "torch_dtype" in config:
        config["torch_dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(_stored(model), folder / TENSORS, metadata={"format": "pt"})


def publish_model(
    model: nn.Module,
    source: Path,
    target: Path,
    about: Mapping[str, Any],
    *,
    replace: bool = False,
) -> str:
    """Write a complete model folder with its manifest, atomically; returns the manifest's digest.

    Raises:
        WeightsError: the folder exists and is not to be replaced.
        StorageError: disk full or no permission.
    """
    with atomic_folder(target, replace=replace) as folder:
        write_model(model, source, folder)
        return write_manifest(folder, about)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        WeightsError: it is missing, truncated or not a safetensors file.
    """
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: cannot be read as safetensors: {error}") from error


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
