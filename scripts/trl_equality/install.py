"""TRL in a virtual environment of its own, `.venv-trl`, beside ours and never imported by it.

Options, all from the environment:
    TRL_VENV         another folder for it
    TORCH_INDEX_URL  a further package index for torch, to choose its build (as for `make setup`)
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from triforge.errors import UnavailableError

ROOT = Path(__file__).parents[2]
TRL = "trl==1.16.0"
_PINNED = ("torch", "transformers", "tokenizers", "accelerate", "safetensors", "numpy")
_STAMP = "triforge-stamp"


def ensure() -> Path:
    """The interpreter that has TRL: made on the first call (minutes, 1.5 GB), found on every later one.

    Torch and transformers are those of `constraints.txt`, so that both sides run the same kernels.

    Raises:
        UnavailableError: pip failed; its last words are in the sentence.
    """
    pins = _pins()
    venv = Path(os.environ.get("TRL_VENV") or ROOT / ".venv-trl").resolve()
    python, stamp = venv / "bin" / "python", venv / _STAMP
    wanted = hashlib.sha256("\n".join([TRL, *pins]).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"TRL: making {venv}, once; this takes minutes", flush=True)  # noqa: T201 (a person waits)
    _run([sys.executable, "-m", "venv", "--clear", str(venv)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    index = os.environ.get("TORCH_INDEX_URL")
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    _run([*pip, *(["--extra-index-url", index] if index else []), torch])
    _run([*pip, TRL, *pins])
    stamp.write_text(wanted)
    return python


def _pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.partition("==")[0] in _PINNED]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise UnavailableError(f"{' '.join(command)}: ended with {done.returncode}:\n{said}")
