"""An engine in a virtual environment of its own: SGLang in SGLANG_VENV or `.venv-sglang`, vLLM likewise."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts import virtual_environments
from scripts.calling import ROOT, call

HERE = Path(__file__).parent
TORCH = "torch==2.13.0"

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Install:
    python: Path
    gpu: bool
    version: str


def has_gpu() -> bool:
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    return subprocess.run([program], capture_output=True, check=False).returncode == 0  # noqa: S603


def ensure(package: str = "sglang", here: Path = HERE) -> Install:
    """Return the environment, made on the first call (about 3 minutes and 3.4 GB without a GPU) and found on every later one."""
    gpu = has_gpu()
    requirements = here / f"requirements-{'gpu' if gpu else 'cpu'}.txt"
    venv = Path(os.environ.get(f"{package.upper()}_VENV") or ROOT / f".venv-{package}").resolve()
    all_of_it = ["-r", str(requirements)]
    installs = [all_of_it] if gpu else [[TORCH], ["--no-deps", *all_of_it]]
    seal = requirements.read_bytes() + TORCH.encode()
    python = virtual_environments.ensure(venv, installs, seal)
    name = package if gpu or package == "sglang" else f"{package}-cpu"
    ask = f"from importlib.metadata import version; print(version({name!r}))"
    return Install(python=python, gpu=gpu, version=call([str(python), "-c", ask]).strip())
