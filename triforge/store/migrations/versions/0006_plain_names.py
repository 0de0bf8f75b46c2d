"""Plain names: models policy, reward and rewriter; the service that answered a request; the record of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

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
    connection = op.get_bind()
    for old, new in _NAMES.items():
        connection.execute(sa.update(_WEIGHTS).where(_WEIGHTS.c.role == old).values(role=new))
        asked = sa.update(_AUDIT).where(_AUDIT.c.service == f"policy {old}")
        connection.execute(asked.values(service=f"policy {new}"))
    for run in connection.execute(sa.select(_RUNS)).all():
        config = dict(run.config)
        if "models" in config:
            config["models"] = _renamed(config["models"], _NAMES)
        state = {
            name: _renamed(value, _NAMES) if isinstance(value, dict) else value
            for name, value in run.state.items()
        }
        mine = sa.update(_RUNS).where(_RUNS.c.id == run.id)
        connection.execute(mine.values(config=config, state=state))
    for row in connection.execute(sa.select(_STEPS)).all():
        mine = sa.update(_STEPS).where(_STEPS.c.run_id == row.run_id, _STEPS.c.step == row.step)
        connection.execute(
            mine.values(artifacts=_renamed(row.artifacts, {"ledger": "step_record"}))
        )


def _renamed(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in document.items()}
