"""Weight versions name the version they repeat."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("weights", schema=None) as batch_op:
        batch_op.add_column(sa.Column("origin", sa.Integer(), nullable=True))
