"""Tenants, API keys, and requests on record; pools and runs belong to a tenant, what there was to `default`."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

# How SQLite's unnamed constraints are called while a table is copied; PostgreSQL has named them itself.
_CONVENTION = {"uq": "%(table_name)s_%(column_0_name)s_key"}


def upgrade() -> None:
    tenants = op.create_table(
        "tenants",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("max_pools", sa.Integer(), nullable=True),
        sa.Column("max_tasks", sa.Integer(), nullable=True),
        sa.Column("max_runs", sa.Integer(), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    now = time.time()
    op.bulk_insert(tenants, [{"name": name, "created_at": now} for name in ("default", "operator")])
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("last_used_at", sa.Float(), nullable=True),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant"])
    with op.batch_alter_table("pools", naming_convention=_CONVENTION) as pools:
        pools.add_column(_tenant())
        pools.drop_constraint("pools_name_key", type_="unique")
        pools.drop_constraint("pools_idempotency_key_key", type_="unique")
    op.create_index("one_pool_a_name", "pools", ["tenant", "name"], unique=True)
    op.create_index("one_pool_a_key", "pools", ["tenant", "idempotency_key"], unique=True)
    with op.batch_alter_table("runs", naming_convention=_CONVENTION) as runs:
        runs.add_column(_tenant())
        runs.drop_constraint("runs_idempotency_key_key", type_="unique")
    op.create_index("one_run_a_key", "runs", ["tenant", "idempotency_key"], unique=True)
    with op.batch_alter_table("audit") as audit:
        audit.alter_column("action", type_=sa.String(length=120), existing_nullable=False)
        audit.alter_column("subject", type_=sa.String(length=300), existing_nullable=False)
        audit.alter_column("pool_id", existing_type=sa.String(length=64), nullable=True)
        audit.add_column(_tenant())
        for name, length in (("key_id", 16), ("room", 32), ("address", 64)):
            audit.add_column(
                sa.Column(name, sa.String(length=length), server_default="", nullable=False)
            )
        audit.add_column(sa.Column("status", sa.Integer(), nullable=True))
    op.create_index("audit_by_tenant", "audit", ["tenant", "id"])


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant", sa.String(length=64), server_default="default", nullable=False)
