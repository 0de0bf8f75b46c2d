"""A run has a ladder a kind of task; those that a run had before are of all its tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.rename_table("ladders", "old_ladders")  # no database changes a primary key in place
    op.create_table(
        "ladders",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("high", sa.Integer(), nullable=False),
        sa.Column("counted", sa.Integer(), nullable=False),
        sa.Column("correct", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"]),
        sa.PrimaryKeyConstraint("run_id", "kind"),
    )
    columns = "run_id, pool_id, high, counted, correct"
    op.execute(f"INSERT INTO ladders ({columns}, kind) SELECT {columns}, '' FROM old_ladders")  # noqa: S608 (constants)
    op.drop_table("old_ladders")
    with op.batch_alter_table("levels", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("kind", sa.String(length=64), nullable=False, server_default="")
        )
