"""A line a trajectory, to find it by. Of steps that were committed before there is none; their records stay as they are."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    texts = {
        "id": 120,
        "run_id": 64,
        "purpose": 24,
        "group_id": 120,
        "task_id": 64,
        "task_slot": 64,
    }
    texts |= {"kind": 64, "reason": 64}
    columns: dict[str, Any] = {name: sa.String(length=length) for name, length in texts.items()}
    columns |= dict.fromkeys(
        ("step", "number", "length", "tokens", "staleness", "votes"), sa.Integer()
    )
    columns |= dict.fromkeys(("truncated", "against"), sa.Boolean())
    columns |= dict.fromkeys(("error", "instruction", "words"), sa.Text())
    measured: dict[str, Any] = {
        "outcome": sa.Integer(),
        "score": sa.Float(),
        "vote": sa.Float(),
        "advantage": sa.Float(),
    }
    op.create_table(
        "trajectories",
        *(sa.Column(name, kind, nullable=False) for name, kind in columns.items()),
        *(sa.Column(name, kind, nullable=True) for name, kind in measured.items()),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
    )
    op.create_index("ix_trajectories_group_id", "trajectories", ["group_id"])
    op.create_index(
        "trajectories_by_step", "trajectories", ["run_id", "step", "number"], unique=True
    )
