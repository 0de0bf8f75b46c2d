"""How the tasks of a pool fit the policy of a trainer, read from measurements and proposals."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from services.env_adapter.pools.rows import pool_row, proposal_of
from services.env_adapter.sidecar.store import trainer_run
from triforge.algorithms.filters import rewrite_direction
from triforge.config import parse
from triforge.store.database import Database
from triforge.store.tables import MeasurementRow, ProposalRow, RunRow, TaskRow
from triforge.types import Curriculum, ProposalSummary

_NEWEST: Final = 50
Fit = Literal["inside", "easy", "hard", "unmeasured"]
_OF: Final[dict[str | None, Fit]] = {None: "inside", "harder": "easy", "easier": "hard"}


def curriculum(database: Database, pool: str) -> Curriculum:
    """Return the curriculum of the pool's run that a trainer plays; it blocks.

    Raises:
        NotFoundError: there is no such pool.
        ConflictError: no run of the pool is played by a trainer.
    """
    with database.read() as session:
        owner = pool_row(session, pool)
        run = trainer_run(session, owner.id)
        made = (ProposalRow.run_id == run.id, ProposalRow.pool_id == owner.id)
        states = select(ProposalRow.state, func.count()).where(*made).group_by(ProposalRow.state)
        counts = [(row[0], row[1]) for row in session.execute(states)]
        newest = select(ProposalRow).where(*made).order_by(ProposalRow.created_at.desc())
        played = select(func.max(MeasurementRow.newest_version))
        version = session.scalar(played.where(MeasurementRow.run_id == run.id))
        return Curriculum(
            pool_id=owner.id,
            run_id=run.id,
            step=run.step,
            band=_band(session, run),
            proposals=dict(counts),
            newest=tuple(_summary(row) for row in session.scalars(newest.limit(_NEWEST))),
            versions={"policy": version or 0, "reward": run.reward_version},
        )


def _band(session: Session, run: RunRow) -> dict[Fit, int]:
    band = parse(run.config).algorithm.resolved
    measured = (
        select(MeasurementRow.task_id, MeasurementRow.successes, MeasurementRow.measured)
        .where(MeasurementRow.run_id == run.id, MeasurementRow.purpose == "train")
        .order_by(MeasurementRow.step)
    )
    last = {task: (successes, count) for task, successes, count in session.execute(measured)}
    active = (TaskRow.split == "train", TaskRow.state == "active")
    counts = Counter[Fit](dict.fromkeys(_OF.values(), 0) | {"unmeasured": 0})
    for task in session.scalars(select(TaskRow.id).where(TaskRow.pool_id == run.pool_id, *active)):
        successes, count = last.get(task, (0, 0))
        direction = rewrite_direction(successes, count, band=band)
        counts[_OF[direction] if count else "unmeasured"] += 1
    return dict(counts)


def _summary(row: ProposalRow) -> ProposalSummary:
    proposal = proposal_of(row)
    return ProposalSummary.model_validate(
        {name: getattr(proposal, name) for name in ProposalSummary.model_fields}
    )
