"""triforge: the policy acts, the reward model judges, the tasks adapt; all three improve in a closed loop.

This package is the library: every service in `services/` enters it, it enters none. `docs/overview.md`, "Map of the library",
says of each part what it is, who uses it, and where its contract stands.
"""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`triforge.train`, which brings the command line's packages, when it is first asked for."""
    if name not in ("train", "Trained"):
        raise AttributeError(f"module 'triforge' has no attribute {name!r}")
    return getattr(importlib.import_module("triforge.cli.training"), name)
