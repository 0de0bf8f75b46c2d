"""Alembic migrations of `triforge.store.tables`; `Database.upgrade` runs them."""
