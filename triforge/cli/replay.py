"""`triforge replay`: a run once more from its record."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from triforge.cli.deployment import kept
from triforge.cli.options import STATE, StateOption


def replay(
    run: Annotated[str, typer.Argument(help="Id of a run, or a folder of --save.")],
    step: Annotated[int | None, typer.Option(min=1, help="Only this training step.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Another value of a field, e.g. algorithm.overrides.lam=1: show what it would have changed. Repeatable."
        ),
    ] = None,
    credit_only: Annotated[
        bool, typer.Option("--credit-only", help="Rewards and advantages; no model is loaded.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(help="Copy the record with its weights into this new folder.")
    ] = None,
    state: StateOption = STATE,
) -> None:
    """Recompute rewards, advantages, losses and gradients of a run from its record and compare; starts no engine.

    Exit code 1 if something differs by more than rounding.
    """
    found = kept(state)
    command = [sys.executable, "-m", "services.trainer", "replay", run]
    command += ["--step", str(step)] if step is not None else []
    command += [part for field in what_if or () for part in ("--what-if", field)]
    command += ["--credit-only"] if credit_only else []
    command += ["--save", str(save)] if save else []
    given = {
        "TRIFORGE_DATABASE_URL": found.database_url,
        "TRIFORGE_ARTIFACTS_URL": found.artifacts_url,
    }
    threads = {"OMP_NUM_THREADS": "1"}  # as learners of `triforge up`: sums come in the same order
    sys.stdout.flush()
    os.execve(sys.executable, command, threads | dict(os.environ) | given)  # noqa: S606  the service takes this process over
