"""Options that several commands take, and what they are read as."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from triforge.config import read_document, with_assignments

STATE = Path("var")

StateOption = Annotated[
    Path, typer.Option("--state", help="Folder of the deployment that `triforge up` runs.")
]
OverlayOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML laid over the deployment's own.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="One field, e.g. run.steps=5. Repeatable.")
]


def overrides(config: Path | None, assignments: Sequence[str] | None) -> dict[str, Any]:
    """A TOML document with single fields (`run.steps=5`) laid over it."""
    return with_assignments(read_document(config) if config else {}, assignments or ())
