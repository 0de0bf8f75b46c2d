"""People change pools and slots, and each change is on record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("by", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("slot", sa.String(length=64), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index("audit_by_pool", ["pool_id", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_slot"), ["slot"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_subject"), ["subject"], unique=False)

    with op.batch_alter_table("pools", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("state", sa.String(length=16), server_default="active", nullable=False)
        )
        batch_op.add_column(
            sa.Column("approval", sa.String(length=16), server_default="automatic", nullable=False)
        )

    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("kind", sa.String(length=64), server_default="", nullable=False)
        )
        batch_op.add_column(
            sa.Column("pinned", sa.Boolean(), server_default=sa.false(), nullable=False)
        )
