"""Others' packages in virtual environments of their own, never imported by ours.

TORCH_INDEX_URL names a further package index for torch, to choose its build (as for `make setup`).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.calling import ROOT, call

CONFORMANCE = Path(__file__).parent / "openenv_conformance"
TRL = "trl==1.16.0"
VERL = ("verl==0.9.1", "TransferQueue==0.1.11")
SCHEMATHESIS = "schemathesis==4.32.5"
_PINNED = ("torch", "transformers", "tokenizers", "accelerate", "safetensors", "numpy")
_INSTALL_S = 3600.0


def ensure(
    venv: Path, installs: Sequence[Sequence[str]], seal: bytes, python: str = sys.executable
) -> Path:
    """Return the interpreter of a virtual environment: made on the first call (minutes), and again when `seal` changes.

    `installs` are the words of each `pip install`, in order.

    Raises:
        UnavailableError: pip failed; its last words are in the sentence.
    """
    program, stamp = venv / "bin" / "python", venv / "triforge-stamp"
    wanted, index = hashlib.sha256(seal).hexdigest(), os.environ.get("TORCH_INDEX_URL")
    if not stamp.is_file() or stamp.read_text() != wanted:
        sys.stdout.write(f"making {venv}, once; this takes minutes\n")
        sys.stdout.flush()
        call([python, "-m", "venv", "--clear", str(venv)])
        pip = [str(program), "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check"]  # fmt: skip
        for words in installs:
            of_torch = index and words[0].startswith("torch==")
            further = ["--extra-index-url", str(index)] if of_torch else []
            call([*pip, *further, *words], timeout_s=_INSTALL_S)
        stamp.write_text(wanted)
    return program


def ensure_files(name: str, python: str = sys.executable, folder: Path = CONFORMANCE) -> Path:
    """Return the same of `.venv-NAME`, with `requirements-NAME.txt`, then `requirements-NAME-alone.txt` without what it asks for."""
    files = [folder / f"requirements-{name}{part}.txt" for part in ("", "-alone")]
    found = [file for file in files if file.is_file()]
    installs = [
        [*(["--no-deps"] if "-alone" in file.stem else []), "-r", str(file)] for file in found
    ]
    seal = b"".join(file.read_bytes() for file in found)
    return ensure(ROOT / f".venv-{name}", installs, seal, python)


def ensure_trl() -> Path:
    """Return the interpreter that has TRL, in `TRL_VENV` or `.venv-trl` (1.5 GB).

    Torch and transformers are those of `constraints.txt`, so that both sides run the same kernels.
    """
    torch, pins = _pins()
    venv = Path(os.environ.get("TRL_VENV") or ROOT / ".venv-trl").resolve()
    return ensure(venv, [[torch], [TRL, *pins]], "\n".join([TRL, *pins]).encode())


def ensure_verl() -> Path:
    """Return the interpreter that has verl without its engines and learners, in `VERL_VENV` or `.venv-verl` (2 GB)."""
    torch, _ = _pins()
    needs = CONFORMANCE.parent / "sidecar_conformance" / "requirements-verl.txt"
    venv = Path(os.environ.get("VERL_VENV") or ROOT / ".venv-verl").resolve()
    seal = "\n".join([torch, *VERL, needs.read_text(encoding="utf-8")]).encode()
    return ensure(venv, [[torch], ["-r", str(needs)], ["--no-deps", *VERL]], seal)


def ensure_schemathesis() -> Path:
    """Return the interpreter that has schemathesis, in `.venv-schemathesis`."""
    return ensure(ROOT / ".venv-schemathesis", [[SCHEMATHESIS]], SCHEMATHESIS.encode())


def _pins() -> tuple[str, list[str]]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line.partition("==")[0] in _PINNED]
    return next(pin for pin in pins if pin.startswith("torch==")), pins
