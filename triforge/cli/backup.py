"""`triforge backup` and `triforge restore`: what lasts of a deployment on one machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from triforge.cli.deployment import kept
from triforge.cli.options import STATE, StateOption
from triforge.cli.terminal import say
from triforge.store.backup import back_up
from triforge.store.backup import restore as put_back
from triforge.supervisor.layout import BROKER
from triforge.supervisor.supervise import LOCK

FolderArgument = Annotated[Path, typer.Argument(help="Folder of the backup.")]


def backup(folder: FolderArgument, state: StateOption = STATE) -> None:
    """Copy the database and the artifacts into a new folder; the deployment may run meanwhile."""
    found = kept(state)
    about = back_up(found.database_url, found.artifacts_url, folder)
    say(f"wrote {folder}: {_summary(about)}")


def restore(folder: FolderArgument, state: StateOption = STATE) -> None:
    """Put a backup back where it was taken; the deployment must not run, and nothing may stand there."""
    found = kept(state)
    about = put_back(
        folder,
        found.database_url,
        found.artifacts_url,
        lock=state / LOCK,
        in_flight=state / BROKER,
        by=os.environ.get("USER", ""),
    )
    say(f"restored {folder}: {_summary(about)}")


def _summary(about: dict[str, Any]) -> str:
    return (
        f"database, {about['files']} files of {about['bytes'] / 2**20:.1f} MiB, the newest weights of {about['weights']} "
        f"models checked; made by triforge {about['triforge']}"
    )
