"""Alembic on a connection of ours; loaded only where a schema is to be changed."""

from __future__ import annotations

from pathlib import Path

import alembic.command
from alembic.config import Config
from sqlalchemy import Connection


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration without an ini file; `connection` is the one that migrations run on."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the schema to a revision, in the transaction of the connection."""
    alembic.command.upgrade(alembic_config(connection), revision)
