"""What Alembic runs: migrations happen on the connection that the caller gives, in the caller's transaction.

To write a new migration after a change of tables.py:

    python -m triforge.store.migrations "add a column"
"""

from alembic import context
from sqlalchemy import Connection

from triforge.store.tables import Base


def run(connection: Connection) -> None:
    """Migrate on this connection."""
    # SQLite cannot alter most of a table in place: batch mode copies it.
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
