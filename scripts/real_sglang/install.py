"""SGLang in a virtual environment of its own, `.venv-sglang`, beside ours and never imported by it.

Options, all from the environment:
    SGLANG_VENV      another folder for it
    TORCH_INDEX_URL  a further package index for torch, to choose its build (as for `make setup`)
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from triforge.errors import UnavailableError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TORCH = "torch==2.13.0"
_STAMP = "triforge-stamp"

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Install:
    """SGLang as it was installed."""

    python: Path
    gpu: bool
    version: str


def has_gpu() -> bool:
    """Whether `nvidia-smi` works here."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    return subprocess.run([program], capture_output=True, check=False).returncode == 0  # noqa: S603


def ensure(tell: Tell) -> Install:
    """The environment, made on the first call (about 3 minutes and 3.4 GB without a GPU) and found on every later one.

    Raises:
        UnavailableError: pip failed; its last words are in the sentence.
    """
    gpu = has_gpu()
    requirements = HERE / f"requirements-{'gpu' if gpu else 'cpu'}.txt"
    venv = Path(os.environ.get("SGLANG_VENV") or ROOT / ".venv-sglang").resolve()
    python, stamp = venv / "bin" / "python", venv / _STAMP
    wanted = hashlib.sha256(requirements.read_bytes() + TORCH.encode()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        _make(venv, python, requirements, gpu=gpu, tell=tell)
        stamp.write_text(wanted)
    return Install(python=python, gpu=gpu, version=_version(python))


def _make(venv: Path, python: Path, requirements: Path, *, gpu: bool, tell: Tell) -> None:
    tell(f"SGLang: making {venv} for a {'GPU' if gpu else 'CPU'}, once; this takes minutes")
    _run([sys.executable, "-m", "venv", "--clear", str(venv)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if gpu:
        _run([*pip, "-r", str(requirements)])
        return
    index = os.environ.get("TORCH_INDEX_URL")
    _run([*pip, *(["--extra-index-url", index] if index else []), TORCH])
    _run([*pip, "--no-deps", "-r", str(requirements)])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise UnavailableError(f"{' '.join(command)}: ended with {done.returncode}:\n{said}")


def _version(python: Path) -> str:
    ask = "from importlib.metadata import version; print(version('sglang'))"
    done = subprocess.run(  # noqa: S603
        [str(python), "-c", ask], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
