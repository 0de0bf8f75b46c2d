"""Tensors of model folders: complete safetensors files, and the other files of such a folder."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BufferedWriter
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from services.trainer.learner.parallel.ranks import Ranks, whole
from triforge.errors import WeightsError
from triforge.store.artifacts import storage_error
from triforge.store.manifests import MANIFEST, write_manifest
from triforge.store.weight_folders import atomic_folder

TENSORS, PROBE = "model.safetensors", "probe.json"
CPU = torch.device("cpu")
MODEL = "model"  # stem of what engines read
FILE_BYTES = 4 << 30  # of one file; several are checked side by side
_AHEAD = 2  # tensors that wait to be written
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_Convert = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
# Of tokenizers and processors; `tokenizer.model.v3` has its own ending.
_COPIED = {".json", ".jinja", ".txt", ".model", ".tiktoken", ".spm", ".bpe", ".codes"}
_TEMPLATES = "additional_chat_templates"  # the named ones, as transformers saves them


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document that people read as well."""
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def copy_companions(source: Path, target: Path) -> None:
    """Copy config, tokenizer and chat template, everything of a model folder but its weights and what proves them."""
    for path in sorted(source.iterdir()):
        copied = path.suffix in _COPIED or path.name.startswith("tokenizer.")
        own = path.name in (MANIFEST, PROBE) or path.name.endswith(".index.json")
        if path.is_file() and copied and not own:
            shutil.copyfile(path, target / path.name)
    for path in sorted((source / _TEMPLATES).glob("*.jinja")):
        (target / _TEMPLATES).mkdir(exist_ok=True)
        shutil.copyfile(path, target / _TEMPLATES / path.name)


def write_probe(folder: Path, probe: Mapping[str, Any]) -> None:
    """Write what shows that an engine holds a version, if there is anything to tell by: `ids`, and all `logprobs` but the first."""
    if probe.get("logprobs") and all(map(math.isfinite, probe["logprobs"])):
        (folder / PROBE).write_text(json.dumps(probe) + "\n")


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensor as float32 on the CPU."""
    return {name: _plain(tensor, torch.float32) for name, tensor in tensors.items()}


def _plain(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to("cpu", dtype).contiguous()


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name (tied ones once) and persistent buffers, as they lie on this rank."""
    persistent = set(model.state_dict())
    buffers = {name: b for name, b in model.named_buffers() if name in persistent}
    return {name: t.detach() for name, t in (dict(model.named_parameters()) | buffers).items()}


def in_folder(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a model as they stand in a folder: other ones where transformers converted those that it read."""
    if not getattr(model, "_weight_conversions", None):
        return dict(tensors)
    apart = revert_weight_conversion(cast("PreTrainedModel", model), dict(tensors))
    return {name: tensor.clone() for name, tensor in apart.items()}  # no two in one storage


class Shares(dict[str, Tensor]):
    """Tensors of a folder as they lie on this rank. `write` makes whole ones of them, together with the other ranks.

    Args:
        stem: the file is `STEM.safetensors`; there are several with an index where they would be long, and for several ranks.
        convert: makes the folder's tensors of the model's.
        dtype: in which they are written.
    """

    def __init__(
        self,
        stem: str,
        tensors: Mapping[str, Tensor],
        ranks: Ranks,
        convert: _Convert = dict,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(sorted(tensors.items()))
        self._stem, self._ranks, self._convert, self.dtype = stem, ranks, convert, dtype

    def write(self, folder: Path) -> None:
        """Each rank writes some of the files, while the next tensors are gathered; at most three are whole at a time.

        Rank 0 says so to the others, who write what they have under that stem. Raises OSError, on all of them, if one cannot.
        """
        ranks, problem = self._ranks, None
        if ranks.rank == 0:
            ranks.broadcast(json.dumps({"write": self._stem, "folder": str(folder)}))
        files = self._plan(folder)
        mine = [file for file in files if file.number % ranks.world == ranks.rank]
        with ThreadPoolExecutor(1) as thread:
            pending = deque(thread.submit(file.append, []) for file in mine)
            for name, share in self.items():
                file = next(file for file in files if name in file.sources)
                if isinstance(share, DTensor):  # every rank has to ask for it
                    share = whole(share.detach().to(self.dtype))
                if file in mine:
                    parts = self._convert({name: share}).values()
                    cpu = [_plain(part, self.dtype) for part in parts]
                    pending.append(thread.submit(file.append, cpu))
                while len(pending) > _AHEAD:
                    failure = pending.popleft().exception()
                    problem = problem or failure
            pending.extend(thread.submit(file.close) for file in mine)
        problem = next(filter(None, [problem, *(future.exception() for future in pending)]), None)
        if ranks.any(problem is not None):
            raise problem or OSError("another rank could not write its part; its log says why")
        if ranks.rank == 0 and len(files) > 1:
            places = {name: file.path.name for file in files for name in file.header}
            size = sum(file.size for file in files)
            index = {"metadata": {"total_size": size}, "weight_map": places}
            write_json(folder / f"{self._stem}.safetensors.index.json", index)

    def _plan(self, folder: Path) -> list[_File]:
        """Assign tensors to files, the same on every rank; each tensor goes to the smallest file so far."""
        total = self.dtype.itemsize * sum(share.numel() for share in self.values())
        count = max(1, min(len(self), max(self._ranks.world, -(-total // FILE_BYTES))))
        names = [self._stem] if count == 1 else [f"{self._stem}-{n + 1:05d}-of-{count:05d}" for n in range(count)]  # fmt: skip
        files = [_File(n, folder / f"{name}.safetensors") for n, name in enumerate(names)]
        for name, share in self.items():
            shapes = self._convert({name: torch.empty(share.shape, device="meta")})
            min(files, key=lambda file: file.size).add(name, shapes, self.dtype)
        return files


class _File:
    """A safetensors file that is written front to back: safetensors itself wants to be given all tensors at once."""

    def __init__(self, number: int, path: Path) -> None:
        self.number, self.path, self.size = number, path, 0
        self.sources = set[str]()  # names of the model's tensors
        self.header: dict[str, Any] = {}
        self._out: BufferedWriter | None = None

    def add(self, source: str, shapes: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.sources.add(source)
        for name, shape in shapes.items():
            start, self.size = self.size, self.size + dtype.itemsize * shape.numel()
            about = {"dtype": _NAMES[dtype], "shape": [*shape.shape]}
            self.header[name] = about | {"data_offsets": [start, self.size]}

    def append(self, tensors: Sequence[Tensor]) -> None:
        if self._out is None:
            header = {"__metadata__": {"format": "pt"}} | self.header
            text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
            text += b" " * (-len(text) % 8)
            self._out = self.path.open("wb")
            self._out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            # a copy: memory that numpy has seen cannot be given back (`Offloaded`)
            self._out.write(tensor.clone().reshape(-1).view(torch.uint8).numpy().data)

    def close(self) -> None:
        if self._out is not None:
            with self._out as out:
                out.flush()
                os.fsync(out.fileno())


def publish_model(
    weights: Shares,
    source: Path,
    target: Path,
    about: Mapping[str, Any],
    *,
    replace: bool = False,
    probe: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Write a complete model folder, atomically: weights, and the companions of `source`; returns the manifest's digest.

    Raises:
        WeightsError: the folder exists and is not to be replaced.
        StorageError: disk full or no permission.
    """
    kind = str(weights.dtype).removeprefix("torch.")
    with atomic_folder(target, replace=replace) as folder:
        copy_companions(source, folder)
        config = json.loads((folder / "config.json").read_text())
        config["dtype"] = kind
        if "torch_dtype" in config:
            config["torch_dtype"] = kind
        write_json(folder / "config.json", config)
        weights.write(folder)
        write_probe(folder, {**probe, "dtype": kind})
        return write_manifest(folder, about)


def model_files(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    ranks: Ranks | None = None,
    dtype: torch.dtype = torch.float32,
) -> Shares:
    """Tensors of a model as its folder is to hold them."""
    return Shares(MODEL, tensors, ranks or Ranks(CPU), partial(in_folder, model), dtype)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file. Raises OSError: disk full or no permission."""
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def stored(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Load the tensors of all files of a folder, by the stem that `Shares` gives them. Errors: see `load_tensors`."""
    found: dict[str, dict[str, Tensor]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.setdefault(_PART.sub("", path.stem), {}).update(load_tensors(path))
    return found


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a safetensors file.

    Raises:
        WeightsError: it is missing, truncated or not a safetensors file.
        StorageError: the disk or the network failed; the file may be whole.
    """
    try:
        return dict(load_file(path))
    except (SafetensorError, FileNotFoundError) as error:
        raise WeightsError(f"{path}: cannot be read as safetensors: {error}") from error
    except OSError as error:
        raise storage_error("read", str(path), error) from error
