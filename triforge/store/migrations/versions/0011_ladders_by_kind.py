"""A run has a ladder a kind of task; those that a run had before are of all its tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _make_again("run_id", "kind", where="")
    with op.batch_alter_table("levels", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("kind", sa.String(length=64), nullable=False, server_default="")
        )


def downgrade() -> None:
    with op.batch_alter_table("levels", schema=None) as batch_op:
        batch_op.drop_column("kind")
    _make_again("run_id", where="WHERE kind = ''")


def _make_again(*key: str, where: str) -> None:
    """Write the table again under another primary key, which no database changes in place."""
    kind = [sa.Column("kind", sa.String(length=64), nullable=False)] if "kind" in key else []
    op.rename_table("ladders", "old_ladders")
    op.create_table(
        "ladders",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        *kind,
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("high", sa.Integer(), nullable=False),
        sa.Column("counted", sa.Integer(), nullable=False),
        sa.Column("correct", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"]),
        sa.PrimaryKeyConstraint(*key),
    )
    columns = "run_id, pool_id, high, counted, correct"
    into, what = (f"{columns}, kind", f"{columns}, ''") if kind else (columns, columns)
    op.execute(f"INSERT INTO ladders ({into}) SELECT {what} FROM old_ladders {where}")  # noqa: S608 (constants)
    op.drop_table("old_ladders")
