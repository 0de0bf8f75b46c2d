"""The environment of Alembic: migrations run on the connection and in the transaction of `Database.upgrade`.

A new migration is a script in `versions/`, named after its revision. SQLite cannot alter most of a table in place, so Alembic
copies it (batch mode); a copy of a table that others refer to needs foreign keys off, which SQLite permits outside of
transactions only.
"""

from alembic import context

from triforge.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
