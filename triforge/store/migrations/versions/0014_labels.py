"""Labels of steps by people and other systems."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "labels",
        sa.Column("run_id", sa.String(64), sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("trajectory_id", sa.String(120), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("by", sa.String(100), primary_key=True),
        sa.Column("label", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_index("labels_in_order", "labels", ["run_id", "number"], unique=True)
