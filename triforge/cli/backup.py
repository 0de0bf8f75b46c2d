"""`triforge backup` and `triforge restore`: what lasts of a deployment on one machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from triforge.cli.deployment import settings
from triforge.cli.options import STATE, StateOption
from triforge.cli.terminal import say
from triforge.config import Settings
from triforge.store.backup import ARTIFACTS, DATABASE, back_up
from triforge.store.backup import restore as put_back
from triforge.supervisor.layout import BROKER
from triforge.supervisor.supervise import ADDRESSES, LOCK

FolderArgument = Annotated[Path, typer.Argument(help="Folder of the backup.")]


def backup(folder: FolderArgument, state: StateOption = STATE) -> None:
    """Copy the database and the artifacts into a new folder; the deployment may run meanwhile."""
    found = _places(state)
    about = back_up(found.database_url, found.artifacts_url, folder)
    say(f"wrote {folder}: {_summary(about)}")


def restore(folder: FolderArgument, state: StateOption = STATE) -> None:
    """Put a backup back where it was taken; the deployment must not run, and nothing may stand there."""
    found = _places(state)
    about = put_back(
        folder,
        found.database_url,
        found.artifacts_url,
        lock=state / LOCK,
        in_flight=state / BROKER,
        by=os.environ.get("USER", ""),
    )
    say(f"restored {folder}: {_summary(about)}")


def _places(state: Path) -> Settings:
    """Where the deployment keeps what lasts, whether it runs now or not."""
    found = settings(state)
    if (state / ADDRESSES).is_file():
        return found
    places = {
        "database_url": f"sqlite:///{state.resolve() / DATABASE}",
        "artifacts_url": str(state.resolve() / ARTIFACTS),
    }
    return found.model_copy(
        update={k: v for k, v in places.items() if f"TRIFORGE_{k.upper()}" not in os.environ}
    )


def _summary(about: dict[str, Any]) -> str:
    return (
        f"database, {about['files']} files of {about['bytes'] / 2**20:.1f} MiB, the newest weights of {about['weights']} "
        f"models checked; made by triforge {about['triforge']}"
    )
