"""What one machine lacks: programs, packages, disk space, and weights that can be read."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triforge.chat_template import read_json
from triforge.config import RunConfig, Settings
from triforge.errors import TriforgeError, WeightsError, install_command
from triforge.rendering import Renderer
from triforge.store.model_config import demand_full_attention, demand_known
from triforge.store.tensor_files import demand_layers, read_folder

State = Literal["ok", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report: `bad` keeps the deployment from working, `warning` may; `mend` says what to do."""

    check: str
    state: State
    said: str
    mend: str = ""


def ok(check: str, said: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", said)


def warning(check: str, said: str, mend: str) -> Finding:
    """It works, but not for long or not for everything."""
    return Finding(check, "warning", said, mend)


def bad(check: str, said: str, mend: str) -> Finding:
    """It does not work."""
    return Finding(check, "bad", said, mend)


_LOW, _FULL = 0.10, 0.03  # shares of a disk that are free
_LOW_BYTES, _FULL_BYTES = 5 * 2**30, 2**30
_TRIAL_S = 10.0

# What runs on this machine and the module that it cannot run without, with the extra that brings it.
LEARNER = dict.fromkeys(("torch", "transformers", "safetensors"), "trainer")
LOCAL_ENGINE = dict.fromkeys(("torch", "transformers", "llguidance"), "local-engine")


def packages(wanted: Mapping[str, str]) -> list[Finding]:
    """Whether modules can be imported; `wanted` maps each to the extra that brings it."""
    missing = {name: extra for name, extra in wanted.items() if not _is_there(name)}
    if not missing:
        return [ok("packages", f"{', '.join(sorted(wanted))}: installed")]
    said = f"{', '.join(sorted(missing))}: not installed"
    return [bad("packages", said, install_command(*sorted(set(missing.values()))))]


def extras(settings: Settings, config: RunConfig | None) -> dict[str, str]:
    """Modules that the deployment's addresses and its document ask for, with the extras that bring them."""
    report, trainer = (config or RunConfig()).report, (config or RunConfig()).trainer
    asked = (
        (settings.database_url.startswith("postgresql"), "psycopg", "postgres"),
        (settings.otlp_endpoint, "opentelemetry.exporter.otlp.proto.http", "otel"),
        (report.tensorboard, "tensorboardX", "tensorboard"),
        (report.wandb_project, "wandb", "wandb"),
        (trainer.policy.lora_rank or trainer.reward.lora_rank, "peft", "lora"),
    )
    return {module: extra for wanted, module, extra in asked if wanted}


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is not
        return False


def sandbox(program: str = "bwrap") -> list[Finding]:
    """Whether programs that models write could be run apart from everything else."""
    found = shutil.which(program)
    if found is None:
        said = "bubblewrap is not installed; environments that run programs refuse to"
        mend = "apt-get install bubblewrap (or your system's package of that name)"
        return [warning("sandbox", said, mend)]
    command = [
        found, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true",
    ]  # fmt: skip
    try:
        trial = subprocess.run(command, capture_output=True, timeout=_TRIAL_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    else:
        if trial.returncode == 0:
            return [ok("sandbox", f"{found} starts")]
        said = trial.stderr.decode(errors="replace").strip()[:200]
    mend = "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1; in a container, see docs/operate.md)"
    return [warning("sandbox", f"{found} does not start: {said}", mend)]


def disks(folders: Iterable[Path]) -> list[Finding]:
    """How much room is left where state and artifacts lie; one finding a disk."""
    found: dict[tuple[int, int], Finding] = {}
    for folder in folders:
        there = _existing(folder)
        usage = shutil.disk_usage(there)
        found.setdefault((usage.total, there.stat().st_dev), disk(there, usage.free, usage.total))
    return list(found.values())


def disk(folder: Path, free: int, total: int) -> Finding:
    """Whether `free` of `total` bytes are enough."""
    unit, name = (2**30, "GiB") if total >= 10 * 2**30 else (2**20, "MiB")
    said = f"{free / unit:.1f} of {total / unit:.0f} {name} free at {folder}"
    mend = "free some, or set TRIFORGE_ARTIFACTS_URL elsewhere; run.keep_checkpoints bounds what a run keeps"
    if free < min(_FULL * total, _FULL_BYTES):
        return bad("disk", said, mend)
    if free < min(_LOW * total, _LOW_BYTES):
        return warning("disk", said, mend)
    return ok("disk", said)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


_RENDERS = ("tokenizer.json", "tokenizer_config.json")


def models(config: RunConfig) -> list[Finding]:
    """The folders of the three roles."""
    return [
        weights(f"models.{role}.path", Path(model.path))
        for role, model in config.models
        if model.path
    ]


def weights(what: str, folder: Path) -> Finding:
    """A model folder: its config, its tokenizer, every tensor where the headers say. `what` names the option or service."""
    mend = f"point {what} at a whole model folder of Hugging Face's form, readable by this user"
    try:
        next(folder.iterdir(), None)  # it is there, and may be looked into
        missing = [name for name in ("config.json", *_RENDERS) if not (folder / name).is_file()]
        if missing:
            return bad(f"weights of {what}", f"{folder}: lacks {', '.join(missing)}", mend)
        tensors = demand_model(folder)
    except (OSError, ValueError, TriforgeError) as error:
        said = error.detail if isinstance(error, TriforgeError) else f"{folder}: {_why(error)}"
        return bad(f"weights of {what}", said, mend)
    return ok(f"weights of {what}", f"{folder}: {tensors} tensors")


def demand_model(folder: Path, *, local: bool = False) -> int:
    """How many tensors a model folder holds that an engine, the `local` one or another, and a learner can be started with.

    It is asked without torch, which takes seconds to import; what only a built model shows is found when they start.

    Raises:
        WeightsError: its type is not known, its layers are not served, its tokenizer or template cannot be used, or a file is damaged.
    """
    config = read_json(folder / "config.json")
    demand_known(folder, config)
    if local:
        demand_full_attention(config)
    tensors = read_folder(folder)
    if not tensors:
        raise WeightsError(f"{folder}: holds no safetensors file")
    demand_layers(folder, config, len(tensors))
    Renderer.from_folder(folder)
    return len(tensors)


def _why(error: OSError | ValueError) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
