"""`triforge doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from triforge.cli.deployment import settings
from triforge.cli.options import STATE, StateOption
from triforge.cli.terminal import say
from triforge.config import Settings, load
from triforge.doctor.installation import examine
from triforge.doctor.local import Finding

_MARKS = {"ok": "ok     ", "warning": "warning", "bad": "BAD    "}


def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Before a start: the TOML document to check."),
    ] = None,
    state: StateOption = STATE,
) -> None:
    """Find what keeps an installation from working, and say how to mend it. Exit code 1 if something does.

    With a document: what a start of it would meet. Without: the deployment that runs.
    """
    if config is None:
        checks = examine(settings(state), state=state)
    else:
        addresses = Settings.from_env()
        checks = examine(addresses, state=state, config=load(config), document=config)
    _show(asyncio.run(checks))


def _show(found: Sequence[Finding]) -> None:
    """Print findings, the faults with what mends them; leaves with exit code 1 if there is a fault."""
    for finding in found:
        say(f"{_MARKS[finding.state]} {finding.check}: {finding.said}")
        if finding.mend and finding.state != "ok":
            say(f"          mend: {finding.mend}")
    bad = sum(finding.state == "bad" for finding in found)
    warnings = sum(finding.state == "warning" for finding in found)
    say(f"{len(found)} checks, {bad} faults, {warnings} warnings")
    if bad:
        raise typer.Exit(1)
