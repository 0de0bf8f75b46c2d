"""Plain names: models policy, reward and rewriter; the service that answered a request; the record of a step."""

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
_STEPS = sa.table(
    "steps",
    sa.column("run_id", sa.String),
    sa.column("step", sa.Integer),
    sa.column("artifacts", sa.JSON),
)
_WEIGHTS = sa.table("weights", sa.column("role", sa.String))
_AUDIT = sa.table("audit", sa.column("service", sa.String))


def upgrade() -> None:
    with op.batch_alter_table("audit") as audit:
        audit.alter_column("room", new_column_name="service", existing_type=sa.String(32))
    _rename(_NAMES)
    _rename_artifacts({"ledger": "step_record"})


def downgrade() -> None:
    _rename_artifacts({"step_record": "ledger"})
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


def _rename_artifacts(names: Mapping[str, str]) -> None:
    connection = op.get_bind()
    for row in connection.execute(sa.select(_STEPS)).all():
        mine = (_STEPS.c.run_id == row.run_id) & (_STEPS.c.step == row.step)
        connection.execute(
            sa.update(_STEPS).where(mine).values(artifacts=_renamed(row.artifacts, names))
        )


def _renamed(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in document.items()}
