"""ALFWorld in a virtual environment of its own, `.venv-alfworld` (410 MB); ALFWORLD_PYTHON names another interpreter that has it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from scripts import virtual_environments
from scripts.calling import ROOT, call

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
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


def ensure() -> Path:
    """Return the interpreter, made on the first call and found on every later one."""
    if named := os.environ.get("ALFWORLD_PYTHON"):
        return Path(named)
    installs = [["-r", str(REQUIREMENTS)]]
    return virtual_environments.ensure(ROOT / ".venv-alfworld", installs, REQUIREMENTS.read_bytes())


def constants(python: Path) -> dict[str, Any]:
    """ALFWorld's tables of what fits where and what can be done to what, as the interpreter's own copy has them."""
    found: dict[str, Any] = json.loads(call([str(python), "-c", _CONSTANTS]))
    return found
