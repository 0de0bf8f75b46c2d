"""The text that explains failures is the diagnosis: options of runs and field of proposals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_OPTIONS = {"critic_tokens": "diagnosis_tokens", "critic_budget": "diagnosis_budget"}
_FIELDS = {"critic": "diagnosis"}
_RUNS = sa.table("runs", sa.column("id", sa.String), sa.column("config", sa.JSON))
_PROPOSALS = sa.table("proposals", sa.column("id", sa.String), sa.column("document", sa.JSON))


def upgrade() -> None:
    connection = op.get_bind()
    for run in connection.execute(sa.select(_RUNS)).all():
        if "adaptation" in run.config:
            adaptation = _renamed(run.config["adaptation"], _OPTIONS)
            config = {**run.config, "adaptation": adaptation}
            connection.execute(sa.update(_RUNS).where(_RUNS.c.id == run.id).values(config=config))
    for row in connection.execute(sa.select(_PROPOSALS)).all():
        mine = _PROPOSALS.c.id == row.id
        document = _renamed(row.document, _FIELDS)
        connection.execute(sa.update(_PROPOSALS).where(mine).values(document=document))


def _renamed(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in document.items()}
