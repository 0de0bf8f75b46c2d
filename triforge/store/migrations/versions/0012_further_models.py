"""Runs and steps have the versions of models beside policy and reward model, by name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_TABLES = ("runs", "steps")


def upgrade() -> None:
    for table in _TABLES:
        column = sa.Column("further", sa.JSON(), nullable=False, server_default="{}")
        op.add_column(table, column)
