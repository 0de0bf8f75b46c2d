"""The parts of this machine: packages, disks, the sandbox, model folders."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from triforge.chat_template import read_json
from triforge.config import RunConfig, Settings
from triforge.errors import SandboxError, TriforgeError, WeightsError, install_command
from triforge.rendering import Renderer
from triforge.sandbox.client import Sandbox
from triforge.store.model_config import demand_full_attention, demand_head, demand_known
from triforge.store.tensor_files import demand_layers, read_folder

_LOW, _FULL = 0.10, 0.03  # shares of a disk that are free
_LOW_BYTES, _FULL_BYTES = 5 * 2**30, 2**30
_FILES: Final = ("config.json", "tokenizer.json", "tokenizer_config.json")

# The modules that a process needs, with the extra that brings each.
LEARNER = dict.fromkeys(("torch", "transformers", "safetensors"), "trainer")
LOCAL_ENGINE = dict.fromkeys(("torch", "transformers", "llguidance"), "local-engine")


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report: `bad` keeps the deployment from working, `warning` may; `mend` says what to do."""

    check: str
    state: Literal["ok", "warning", "bad"]
    text: str
    mend: str = ""


def packages(wanted: Mapping[str, str]) -> list[Finding]:
    """Check that modules can be imported; `wanted` maps each to its extra."""
    missing = {name: extra for name, extra in wanted.items() if not _is_installed(name)}
    if not missing:
        return [Finding("packages", "ok", f"{', '.join(sorted(wanted))}: installed")]
    text = f"{', '.join(sorted(missing))}: not installed"
    return [Finding("packages", "bad", text, install_command(*sorted(set(missing.values()))))]


def extras(settings: Settings, config: RunConfig | None) -> dict[str, str]:
    """Return the optional modules that the settings and the document use, with their extras."""
    report, trainer = (config or RunConfig()).report, (config or RunConfig()).trainer
    used = (
        (settings.database_url.startswith("postgresql"), "psycopg", "postgres"),
        (settings.otlp_endpoint, "opentelemetry.exporter.otlp.proto.http", "otel"),
        (report.tensorboard, "tensorboardX", "tensorboard"),
        (report.wandb_project, "wandb", "wandb"),
        (trainer.policy.lora_rank or trainer.reward.lora_rank, "peft", "lora"),
    )
    return {module: extra for wanted, module, extra in used if wanted}


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


def sandbox() -> list[Finding]:
    """Run a program as environments run those of a model."""
    runs = Sandbox(concurrency=1)
    try:
        runs.check()
    except SandboxError as error:
        text = f"environments that run programs refuse to: {error.detail}"
        mend = "install bubblewrap and libseccomp2, and allow user namespaces (docs/operate.md)"
        return [Finding("sandbox", "warning", text, mend)]
    finally:
        runs.close()
    return [Finding("sandbox", "ok", "a program runs")]


def disks(folders: Iterable[Path]) -> list[Finding]:
    """Check the free space where state and artifacts are; one finding for each disk."""
    findings: dict[tuple[int, int], Finding] = {}
    for folder in folders:
        place = folder.absolute()
        place = next(parent for parent in (place, *place.parents) if parent.exists())
        usage = shutil.disk_usage(place)
        key = (usage.total, place.stat().st_dev)
        findings.setdefault(key, disk(place, usage.free, usage.total))
    return list(findings.values())


def disk(folder: Path, free: int, total: int) -> Finding:
    """Check whether `free` of `total` bytes are enough."""
    unit, name = (2**30, "GiB") if total >= 10 * 2**30 else (2**20, "MiB")
    text = f"{free / unit:.1f} of {total / unit:.0f} {name} free at {folder}"
    mend = "free some, or set TRIFORGE_ARTIFACTS_URL elsewhere; run.keep_checkpoints bounds what a run keeps"
    if free < min(_FULL * total, _FULL_BYTES):
        return Finding("disk", "bad", text, mend)
    if free < min(_LOW * total, _LOW_BYTES):
        return Finding("disk", "warning", text, mend)
    return Finding("disk", "ok", text)


def models(config: RunConfig) -> list[Finding]:
    """Check the model folders of all roles."""
    return [
        weights(f"models.{role}.path", Path(model.path))
        for role, model in config.models
        if model.path
    ]


def weights(name: str, folder: Path) -> Finding:
    """Check a model folder: config, tokenizer, and each tensor where the headers say; `name` is its option or service."""
    check = f"weights of {name}"
    mend = f"point {name} at a whole model folder of Hugging Face's form, readable by this user"
    try:
        next(folder.iterdir(), None)  # raises where it is missing or closed to this user
        missing = [file for file in _FILES if not (folder / file).is_file()]
        if missing:
            return Finding(check, "bad", f"{folder}: lacks {', '.join(missing)}", mend)
        tensors = demand_model(folder)
    except TriforgeError as error:
        return Finding(check, "bad", error.detail, mend)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Finding(check, "bad", f"{folder}: {reason.lower()}", mend)
    return Finding(check, "ok", f"{folder}: {tensors} tensors")


def demand_model(folder: Path, *, local: bool = False) -> int:
    """Return the number of tensors of a folder that an engine (the `local` one or another) and a learner can load.

    It needs no torch, which takes seconds to import; the rest is checked when they start.

    Raises:
        WeightsError: its type is not known, its layers are not served, its output matrix is missing or twofold, its tokenizer or template cannot be used, or a file is damaged.
    """
    config = read_json(folder / "config.json")
    demand_known(folder, config)
    if local:
        demand_full_attention(config)
    tensors = read_folder(folder)
    if not tensors:
        raise WeightsError(f"{folder}: holds no safetensors file")
    demand_layers(folder, config, len(tensors))
    demand_head(folder, config, tensors)
    Renderer.from_folder(folder)
    return len(tensors)
