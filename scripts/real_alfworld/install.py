"""ALFWorld in a virtual environment of its own, `.venv-alfworld`, beside ours and never imported by it.

ALFWORLD_PYTHON names another interpreter that has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from triforge.errors import UnavailableError

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements.txt"


def ensure(tell: Callable[[str], None]) -> Path:
    """The interpreter, made on the first call (about 410 MB) and found on every later one.

    Raises:
        UnavailableError: pip failed; its last words are in the sentence.
    """
    named = os.environ.get("ALFWORLD_PYTHON")
    if named:
        return Path(named)
    venv = ROOT / ".venv-alfworld"
    python, stamp = venv / "bin" / "python", venv / "triforge-stamp"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        tell(f"ALFWorld: making {venv}, once; this takes minutes")
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "-r", str(REQUIREMENTS)])
        stamp.write_text(wanted)
    return python


_CONSTANTS = """
import json
from alfworld.gen import constants
names = ("VAL_RECEPTACLE_OBJECTS", "VAL_ACTION_OBJECTS", "MOVABLE_RECEPTACLES", "RECEPTACLES")
found = {name: getattr(constants, name) for name in names}
print(json.dumps({
    name: {key: sorted(some) for key, some in sorted(value.items())} if isinstance(value, dict) else sorted(value)
    for name, value in found.items()
}))
"""


def constants(python: Path) -> dict[str, Any]:
    """ALFWorld's tables of what fits where and what can be done to what, as the interpreter's own copy has them."""
    done = subprocess.run([str(python), "-c", _CONSTANTS], capture_output=True, check=True)  # noqa: S603
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise UnavailableError(f"{' '.join(command)}: ended with {done.returncode}:\n{said}")
