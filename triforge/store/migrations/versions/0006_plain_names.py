"""The models of a run are called policy, reward and rewriter; a request on record names the service that answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NAMES = {"acts": "policy", "judges": "reward", "rewrites": "rewriter"}
_RUNS = sa.table(
    "runs", sa.column("id", sa.String), sa.column("config", sa.JSON), sa.column("state", sa.JSON)
)
_WEIGHTS = sa.table("weights", sa.column("role", sa.String))
_AUDIT = sa.table("audit", sa.column("service", sa.String))


def upgrade() -> None:
    with op.batch_alter_table("audit") as audit:
        audit.alter_column("room", new_column_name="service", existing_type=sa.String(32))
    _rename(_NAMES)


def downgrade() -> None:
    _rename({new: old for old, new in _NAMES.items()})
    with op.batch_alter_table("audit") as audit:
        audit.alter_column("service", new_column_name="room", existing_type=sa.String(32))


def _rename(names: Mapping[str, str]) -> None:
    connection = op.get_bind()
    for old, new in names.items():
        connection.execute(sa.update(_WEIGHTS).where(_WEIGHTS.c.role == old).values(role=new))
        connection.execute(
            sa.update(_AUDIT)
            .where(_AUDIT.c.service == f"policy {old}")
            .values(service=f"policy {new}")
        )
    for run in connection.execute(sa.select(_RUNS)).all():
        config = dict(run.config)
        if "models" in config:
            config["models"] = _renamed(config["models"], names)
        state = {
            name: _renamed(value, names) if isinstance(value, dict) else value
            for name, value in run.state.items()
        }
        connection.execute(
            sa.update(_RUNS).where(_RUNS.c.id == run.id).values(config=config, state=state)
        )


def _renamed(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in document.items()}
