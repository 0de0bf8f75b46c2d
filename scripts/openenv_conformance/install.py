"""Others' packages in virtual environments of their own, beside ours and never imported by it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from triforge.errors import UnavailableError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_STAMP = "triforge-stamp"


def ensure(name: str, python: str = sys.executable, folder: Path = HERE) -> Path:
    """The folder of programs of `.venv-NAME`, made on the first call (some minutes) and found on every later one.

    Args:
        name: `requirements-NAME.txt` is installed, then `requirements-NAME-alone.txt` without what it asks for.

    Raises:
        UnavailableError: pip failed; its last words are in the sentence.
    """
    venv = ROOT / f".venv-{name}"
    files = [folder / f"requirements-{name}{part}.txt" for part in ("", "-alone")]
    found = [file for file in files if file.is_file()]
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in found)).hexdigest()
    stamp = venv / _STAMP
    if not stamp.is_file() or stamp.read_text() != wanted:
        sys.stdout.write(f"installing {', '.join(file.name for file in found)} into {venv}\n")
        sys.stdout.flush()
        _run([python, "-m", "venv", "--clear", str(venv)])
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--no-input"]
        for file in found:
            alone = ["--no-deps"] if file.stem.endswith("-alone") else []
            _run([*pip, *alone, "-r", str(file)])
        stamp.write_text(wanted)
    return venv / "bin"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise UnavailableError(f"{' '.join(command[:6])} failed: {done.stderr.strip()[-600:]}")
