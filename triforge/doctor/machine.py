"""What the machine itself lacks: programs, packages, service on its disks."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from triforge.config import RunConfig, Settings
from triforge.doctor.findings import Finding, bad, ok, warning

_LOW, _FULL = 0.10, 0.03  # shares of a disk that are free
_LOW_BYTES, _FULL_BYTES = 5 * 2**30, 2**30
_TRIAL_S = 10.0

# What runs on this machine and the module that it cannot run without, with the extra that brings it.
LEARNER = {"torch": "trainer", "transformers": "trainer", "safetensors": "trainer"}
LOCAL_ENGINE = {
    "torch": "local-engine",
    "transformers": "local-engine",
    "llguidance": "local-engine",
}


def packages(wanted: Mapping[str, str]) -> list[Finding]:
    """Whether modules can be imported; `wanted` maps each to the extra that brings it."""
    missing = {name: extra for name, extra in wanted.items() if not _is_there(name)}
    if not missing:
        return [ok("packages", f"{', '.join(sorted(wanted))}: installed")]
    extras = ",".join(sorted(set(missing.values())))
    said = f"{', '.join(sorted(missing))}: not installed"
    return [bad("packages", said, f"pip install 'triforge[{extras}]'")]


def extras(settings: Settings, config: RunConfig | None) -> dict[str, str]:
    """Modules that the deployment's addresses and its document ask for, with the extras that bring them."""
    wanted = {}
    if settings.database_url.startswith("postgresql"):
        wanted["psycopg"] = "postgres"
    if settings.otlp_endpoint:
        wanted["opentelemetry.exporter.otlp.proto.http"] = "otel"
    if config is not None:
        if config.report.tensorboard:
            wanted["tensorboardX"] = "tensorboard"
        if config.report.wandb_project:
            wanted["wandb"] = "wandb"
        if config.trainer.policy.lora_rank or config.trainer.reward.lora_rank:
            wanted["peft"] = "lora"
    return wanted


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is not
        return False


def sandbox(program: str = "bwrap") -> list[Finding]:
    """Whether programs that models write could be run apart from everything else."""
    found = shutil.which(program)
    if found is None:
        return [
            warning(
                "sandbox",
                "bubblewrap is not installed; environments that run programs refuse to",
                "apt-get install bubblewrap (or your system's package of that name)",
            )
        ]
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
    return [
        warning(
            "sandbox",
            f"{found} does not start: {said}",
            "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1; in a container, see docs/operations.md)",
        )
    ]


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
