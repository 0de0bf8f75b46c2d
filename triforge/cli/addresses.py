"""Where the APIs are: the environment first, then what `triforge up` wrote, then the defaults."""

from __future__ import annotations

import json
import os
from pathlib import Path

from triforge.config import Settings
from triforge.supervisor.supervise import ADDRESSES

STATE = Path("var")


def settings(state: Path = STATE) -> Settings:
    """The addresses of the deployment that runs in `state`, or of the one that the environment names."""
    found = Settings.from_env()
    path = state / ADDRESSES
    if not path.is_file():
        return found
    written = json.loads(path.read_text())
    return found.model_copy(
        update={k: v for k, v in written.items() if f"TRIFORGE_{k.upper()}" not in os.environ}
    )
