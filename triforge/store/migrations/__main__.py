"""Write the migration that brings the schema from head to what tables.py says: `python -m triforge.store.migrations MESSAGE`."""

from __future__ import annotations

import sys

import alembic.command
import alembic.script

from triforge.store.database import open_database
from triforge.store.migrations.running import alembic_config


def main() -> None:
    """Compare a fresh database at head with the tables and write the difference."""
    database = open_database("sqlite://")
    with database.engine.connect() as connection:
        config = alembic_config(connection)
        scripts = alembic.script.ScriptDirectory.from_config(config)
        number = len(list(scripts.walk_revisions())) + 1
        alembic.command.revision(
            config, message=" ".join(sys.argv[1:]), autogenerate=True, rev_id=f"{number:04d}"
        )


main()
