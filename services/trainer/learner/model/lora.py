"""Low-rank adapters (Hu et al., 2021): W x becomes W x + alpha/rank B (A x), and only A and B are trained.

PEFT puts the layers into the model. B begins at 0, so an adapter that was not trained changes nothing. Of a model that sees
only the layers of its language model get one. A version is a folder in PEFT's format over a base that is never written again:

    adapter_config.json, adapter_model.safetensors      as PEFT and engines read them, float32
    config.json, tokenizer files, chat template         copied from the base
    probe.json                                          a prompt and its log-probabilities under the new weights
    manifest.json                                       with `base`: the base's folder and digest
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from services.trainer.learner.model.causal_lm import ScoringModel, Weights, copy_tensors
from services.trainer.learner.model.token_batches import TokenBatch
from services.trainer.learner.parallel.ranks import Ranks, whole
from services.trainer.learner.weights.tensors import (
    CPU,
    copy_companions,
    load_tensors,
    model_files,
    model_tensors,
    on_cpu,
    publish_model,
    save_tensors,
    write_json,
    write_probe,
)
from triforge.config import LearnerSection
from triforge.errors import ConfigError, WeightsError, install_command
from triforge.store.images import ImageStore
from triforge.store.manifests import read_manifest, write_manifest
from triforge.store.model_digest import model_digest
from triforge.store.weight_folders import atomic_folder
from triforge.vision.image_spec import ImageSpec

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # PEFT's, before every tensor of a file
_NAME = "default"  # PEFT's, of the only adapter of a model


@dataclass(frozen=True, slots=True)
class LoraShape:
    """Rank, scale and layers of an adapter; see `LearnerSection`."""

    rank: int
    alpha: int
    targets: tuple[str, ...] = ()

    @staticmethod
    def of(learner: LearnerSection) -> LoraShape | None:
        """Return the adapter that a learner trains; None for all weights."""
        if learner.lora_rank == 0:
            return None
        return LoraShape(learner.lora_rank, learner.lora_alpha, learner.lora_targets)


class AdaptedModel(ScoringModel):
    """A model that holds an adapter's layers; `parameters` are the adapter's.

    `base` is the folder of the weights below, `settings` are PEFT's, as they go into adapter_config.json.
    """

    def __init__(
        self,
        model: Any,
        base: Path,
        settings: dict[str, Any],
        *,
        image_spec: ImageSpec | None = None,
        images: ImageStore | None = None,
    ) -> None:
        super().__init__(model, image_spec=image_spec, images=images)
        self.base, self.settings = base, settings

    @staticmethod
    def over(
        base: Path,
        shape: LoraShape,
        *,
        seed: int = 0,
        device: torch.device | None = CPU,
        images: ImageStore | None = None,
    ) -> AdaptedModel:
        """Return a fresh adapter over a model folder: A is drawn with `seed`, B is 0. `images` reads pixels for vision models.

        Raises:
            ConfigError: PEFT is not installed, or the model has no such layers.
            WeightsError: the folder is not a complete model folder.
        """
        try:
            peft = importlib.import_module("peft")  # takes a second, and only adapters need it
        except ImportError as error:
            raise ConfigError(
                f"trainer.*.lora_rank: given {shape.rank}, which needs PEFT ({error}): {install_command('lora')}"
            ) from None
        scoring = ScoringModel.load(base, None if device is None else CPU)
        model: Any = scoring.module
        reader = model if scoring.image_spec is None else model.get_decoder()
        targets = _targets(reader, shape, base)
        config = peft.LoraConfig(
            r=shape.rank,
            lora_alpha=shape.alpha,
            target_modules=targets,
            exclude_modules=_outside(reader, model, targets) or None,
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(base),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(config, model)
        settings = {
            key: sorted(value) if isinstance(value, set) else value
            for key, value in config.to_dict().items()
        }
        model = model.to(device or CPU)
        return AdaptedModel(model, base, settings, image_spec=scoring.image_spec, images=images)

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Inside, the model is its base. Not between a forward pass and its way back."""
        layers: list[Any] = [m for m in self.module.modules() if hasattr(m, "lora_A")]
        # Not PEFT's `enable_adapters`: that also freezes the tensors, and of a sharded layer it would freeze whichever
        # of share and whole stands in it just then.
        for layer in layers:
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in layers:
                layer._disable_adapters = False

    def named(self) -> dict[str, nn.Parameter]:
        """Return the adapter's tensors by PEFT's names: A [rank, in] and B [out, rank] of each layer."""
        return {
            _PREFIX + name.replace(f".{_NAME}.", "."): p for name, p in self.parameters().items()
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the same, unsharded, float32 on the CPU. A collective call."""
        return on_cpu({name: whole(parameter) for name, parameter in self.named().items()})

    def read(self, folder: Path) -> None:
        """Take over the adapter of a folder. Raises WeightsError: see `copy_tensors`."""
        path, known = folder / TENSORS, self.named()
        copy_tensors(load_tensors(path), known, set(known), where=str(path))

    def publish(
        self,
        target: Path,
        about: Mapping[str, Any],
        weights: Weights,
        initial: Path,
        ranks: Ranks | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> str:
        """Publish as `ScoringModel.publish` does, with the base's other files. Raises WeightsError, too, if the base is gone."""
        base = {"uri": str(self.base), "digest": model_digest(self.base)}
        with atomic_folder(target) as folder:
            copy_companions(self.base, folder)
            write_json(folder / CONFIG, self.settings | {"inference_mode": True})
            save_tensors(weights.tensors, folder / TENSORS)
            write_probe(folder, weights.probe)
            return write_manifest(folder, {**about, "base": base})


class BaseModel:
    """The base below an adapter, which is switched off for each pass, as a scorer."""

    def __init__(self, model: AdaptedModel) -> None:
        self._model = model

    def score(self, batch: TokenBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """See `ScoringModel.score`."""
        with self._model.without_adapter():
            return self._model.score(batch, temperature)


def _outside(part: nn.Module, model: nn.Module, targets: Sequence[str]) -> list[str]:
    """Names of the layers of a model that are called like targets and do not lie in a part of it."""
    inside = set(part.modules())
    return [
        name
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in targets and module not in inside
    ]


def _targets(model: nn.Module, shape: LoraShape, base: Path) -> list[str]:
    """Return the names of the layers to adapt: the linear layers inside the numbered blocks."""
    found = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and any(part.isdigit() for part in name.split("."))
    }
    unknown = sorted(set(shape.targets) - found)
    if unknown or not found:
        raise ConfigError(
            f"trainer.*.lora_targets: given {unknown or 'none'}, expected linear layers of the blocks of {base}: "
            f"{', '.join(sorted(found)) or 'it has none'}"
        )
    return sorted(shape.targets or found)


# ---- folders ----


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no whole model."""
    return (folder / CONFIG).is_file()


def load_version(
    folder: Path,
    initial: Path,
    shape: LoraShape | None,
    device: torch.device | None = CPU,
    images: ImageStore | None = None,
    own: dict[str, Tensor] | None = None,
) -> ScoringModel:
    """Load the model of a published version: its whole weights (`own` if the version is rounded), or `initial` with its adapter.

    Raises:
        ConfigError: the version is of another kind than the learner is to train.
        WeightsError: a folder is damaged, or `initial` is not the base that the adapter was trained over.
    """
    if is_adapter(folder) != (shape is not None):
        given = f"lora_rank {shape.rank}" if shape else "lora_rank 0"
        held = "an adapter" if is_adapter(folder) else "a whole model"
        raise ConfigError(f"trainer.*.lora_rank: given {given}, but {folder} holds {held}")
    if shape is None:
        return ScoringModel.load(folder, device, images=images, tensors=own)
    expected, digest = read_manifest(folder).get("base", {}).get("digest"), model_digest(initial)
    if digest != expected:
        raise WeightsError(
            f"{initial}: is not the base of {folder}: its digest is {digest}, expected {expected}"
        )
    model = AdaptedModel.over(initial, shape, device=device, images=images)
    held_settings = json.loads((folder / CONFIG).read_text())
    for key in ("r", "lora_alpha", "target_modules"):
        if held_settings.get(key) != model.settings[key]:
            raise ConfigError(
                f"trainer.*.lora_*: given {key} = {model.settings[key]}, but {folder / CONFIG} has {held_settings.get(key)}"
            )
    model.read(folder)
    return model


def merge(adapter: Path, out: Path, *, base: Path | None = None, replace: bool = False) -> Path:
    """Write a whole model folder: the base's weights with the adapter added to them.

    `adapter` is a published version, or any folder in PEFT's format; without `base` it is the model that the adapter names.

    Raises:
        WeightsError: a folder is damaged, or they do not fit.
        StorageError: `out` cannot be written.
    """
    settings = _settings(adapter)
    below = base or Path(str(settings["base_model_name_or_path"]))
    shape = LoraShape(settings["r"], settings["lora_alpha"], tuple(settings["target_modules"]))
    held = AdaptedModel.over(below, shape)
    held.read(adapter)
    model = ScoringModel.load(below).module
    weights = dict(model.named_parameters())
    tensors = held.tensors()
    with torch.no_grad():
        for name, narrow in tensors.items():
            if ".lora_A." in name:
                wide = tensors[name.replace(".lora_A.", ".lora_B.")]
                weight = name.removeprefix(_PREFIX).replace(".lora_A.", ".")
                weights[weight].add_(wide @ narrow, alpha=shape.alpha / shape.rank)
    about = {"kind": "merged", "base": str(below), "adapter": str(adapter)}
    publish_model(model_files(model, model_tensors(model)), below, out, about, replace=replace)
    return out


def _settings(adapter: Path) -> dict[str, Any]:
    path = adapter / CONFIG
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        missing = {"r", "lora_alpha", "target_modules", "base_model_name_or_path"} - set(found)
    except (OSError, ValueError, TypeError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    odd = [key for key in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern") if found.get(key)]  # fmt: skip
    if missing or odd or not isinstance(found["target_modules"], list):
        raise WeightsError(
            f"{path}: expected plain LoRA with r, lora_alpha, a list target_modules and base_model_name_or_path; "
            f"missing {sorted(missing) or 'nothing'}, not supported {odd or 'nothing'}"
        )
    return found
