"""One table of the notes of controllers, in the place of two tables of one method."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Make the table and move the rows."""
    text = sa.String(64)
    notes = op.create_table(
        "controller_notes",
        sa.Column("method", text, primary_key=True),
        sa.Column("subject", text, primary_key=True),
        sa.Column("key", text, primary_key=True),
        sa.Column("value", sa.JSON, nullable=False),
    )
    read = op.get_bind().execute
    stands = read(sa.text("SELECT run_id, kind, high, counted, correct FROM ladders")).all()
    tasks = read(sa.text("SELECT task_id, kind, level FROM levels")).all()
    rows = [
        (run, kind, {"high": high, "counted": counted, "correct": correct})
        for run, kind, high, counted, correct in stands
    ]
    rows += [(task, "", {"kind": kind, "level": level}) for task, kind, level in tasks]
    if rows:
        names = ("subject", "key", "value")
        op.bulk_insert(
            notes, [{"method": "rlve"} | dict(zip(names, row, strict=True)) for row in rows]
        )
    op.drop_table("ladders")
    op.drop_table("levels")
