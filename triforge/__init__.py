"""triforge: a policy acts, a reward model judges its steps, a rewriter changes tasks; all three improve in one loop.

This package is the library: every service in `services/` imports it, it imports none of them (docs/overview.md).
"""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `triforge.train` on first use: it needs the packages of the command line."""
    if name not in ("train", "Trained"):
        raise AttributeError(f"module 'triforge' has no attribute {name!r}")
    return getattr(importlib.import_module("triforge.cli.train"), name)
