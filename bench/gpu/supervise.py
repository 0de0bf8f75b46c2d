"""A part in a process of its own, under its limit, and what that process finds around it. No torch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("box", "engine", "learner", "throughput", "weights", "colocate", "loop")


class SkipCase(Exception):  # noqa: N818 - no failure
    """The machine lacks what the case needs; the words say what."""


def prepare(packages: Path, *, rehearse: bool) -> dict[str, str]:
    """Return the environment variables of parts: the tree and the carried packages importable, nothing fetched, entry points known."""
    paths = [str(ROOT), _metadata(), *_installed(packages), os.environ.get("PYTHONPATH", "")]
    fixed = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    if rehearse:
        fixed |= {"CUDA_VISIBLE_DEVICES": ""}
    return {"OMP_NUM_THREADS": "1"} | os.environ | fixed if rehearse else os.environ | fixed


def _installed(wheels: Path) -> list[str]:
    """Install the carried wheels once and return their folder; None without wheels."""
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        return []
    number = hashlib.sha256(" ".join([sys.version, *found]).encode()).hexdigest()[:12]
    target = Path(tempfile.gettempdir(), f"triforge-gpu-packages-{number}")
    if not target.is_dir():
        aside = tempfile.mkdtemp()
        options = ["--quiet", "--no-index", "--no-deps", "--target", aside]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *found], check=True)
        Path(aside).rename(target)
    return [str(target)]


def _metadata() -> str:
    """Write entry points as an installed triforge has them and return their folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    folder = ROOT / "var/gpu-metadata"
    info = folder / f"triforge-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    about = f"Metadata-Version: 2.1\nName: triforge\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(about)
    return str(folder)


def run_part(
    part: str, path: Path, environ: dict[str, str], *, rehearse: bool, chosen: str, until: float,
) -> int | None:  # fmt: skip
    """Run it until it ends or its time is over; the exit code, None for one that was ended here."""
    command = [sys.executable, "-m", "bench.gpu.part", part, str(path), str(int(rehearse)), chosen]
    child = subprocess.Popen(command, env=environ, cwd=ROOT, start_new_session=True)
    try:
        return child.wait(until - time.monotonic())
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process and everything that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            os.killpg(child.pid, number)
            child.wait(5)
