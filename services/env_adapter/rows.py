"""Rows of the database: how they are found and locked, as messages, and the record of what people change."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from triforge.access.callers import caller, own
from triforge.environments import registry
from triforge.errors import ConflictError, NotFoundError
from triforge.store.tables import AuditRow, MeasurementRow, PoolRow, ProposalRow, TaskRow
from triforge.types import Approval, Change, Measurement, PoolState, PoolStatus, Proposal, Task


def pool_row(session: Session, pool: str) -> PoolRow:
    """A pool's row by id or name, as the caller sees it.

    Raises:
        NotFoundError: there is no such pool for this caller.
        ConflictError: the caller sees several of this name and none is its own.
    """
    row = session.get(PoolRow, pool)
    if row is not None and caller().sees(row.tenant):
        return row
    named = session.scalars(select(PoolRow).where(PoolRow.name == pool, *own(PoolRow.tenant))).all()
    found = [row for row in named if row.tenant == caller().tenant] or list(named)
    if not found:
        raise NotFoundError(f"pool {pool!r} does not exist; GET /v1/pools lists all")
    if len(found) > 1:
        ids = ", ".join(sorted(row.id for row in found))
        raise ConflictError(
            f"pool {pool!r}: several tenants have one of this name; give an id: {ids}"
        )
    return found[0]


def lock_pool(session: Session, pool_id: str) -> PoolRow:
    """Lock a pool until the end of the transaction; raises NotFoundError. Whoever moves its slots or plans does so.

    SQLite's writers take turns anyway; PostgreSQL locks the row.
    """
    row = session.scalars(
        select(PoolRow)
        .where(PoolRow.id == pool_id)
        .with_for_update()
        .execution_options(populate_existing=True)  # as it is under the lock
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"pool {pool_id!r} does not exist; GET /v1/pools lists all")
    return row


def task_in(session: Session, task_id: str) -> Task:
    """A task version; raises NotFoundError."""
    row = task_row(session, task_id)
    return task_of(row, session.get_one(PoolRow, row.pool_id).family)


def task_row(session: Session, task_id: str) -> TaskRow:
    """The row of a task version; raises NotFoundError."""
    row = session.get(TaskRow, task_id)
    if row is None or not _visible(session, row.pool_id):
        raise NotFoundError(
            f"task {task_id!r} does not exist; GET /v1/pools/{{pool}}/tasks lists a pool's tasks"
        )
    return row


def proposal_row(session: Session, proposal_id: str) -> ProposalRow:
    """The row of a proposal; raises NotFoundError."""
    row = session.get(ProposalRow, proposal_id)
    if row is None or not _visible(session, row.pool_id):
        raise NotFoundError(
            f"proposal {proposal_id!r} does not exist; GET /v1/pools/{{pool}}/proposals lists a pool's"
        )
    return row


def _visible(session: Session, pool_id: str) -> bool:
    return caller().sees(session.get_one(PoolRow, pool_id).tenant)


def task_of(row: TaskRow, family: str) -> Task:
    """A row as a message."""
    fields = {name: getattr(row, name) for name in Task.model_fields if name != "family"}
    return Task.model_validate({**fields, "family": family})


def pool_states(session: Session, rows: Sequence[PoolRow]) -> list[PoolState]:
    """Pools with their counts."""
    ids = [row.id for row in rows]
    tasks: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: {"train": {}, "heldout": {}})
    for pool_id, split, state, count in session.execute(
        select(TaskRow.pool_id, TaskRow.split, TaskRow.state, func.count())
        .where(TaskRow.pool_id.in_(ids))
        .group_by(TaskRow.pool_id, TaskRow.split, TaskRow.state)
    ):
        tasks[pool_id][split][state] = count
    proposals: dict[str, dict[str, int]] = defaultdict(dict)
    controls: dict[str, dict[str, int]] = defaultdict(dict)
    # The JSON paths are named in a subquery: PostgreSQL does not see that two bound paths are the same expression.
    said = (
        select(
            ProposalRow.pool_id,
            ProposalRow.state,
            ProposalRow.document["verdict"].as_string().label("verdict"),
            ProposalRow.document["null_control"].as_boolean().label("control"),
        )
        .where(ProposalRow.pool_id.in_(ids))
        .subquery()
    )
    grouped = session.execute(select(*said.c, func.count()).group_by(*said.c))
    for pool_id, state, word, control, count in map(tuple, grouped):
        counts, key = (controls, word or state) if control else (proposals, state)
        counts[pool_id][key] = counts[pool_id].get(key, 0) + count
    return [
        PoolState(
            id=row.id,
            name=row.name,
            environment=row.family,
            options=row.options,
            created_at=row.created_at,
            tasks=dict(tasks[row.id]),
            proposals=dict(proposals[row.id]),
            null_control=dict(controls[row.id]),
            state=cast("PoolStatus", row.state),
            approval=cast("Approval", row.approval),
            tenant=row.tenant,
            programs=registry.solved_by_programs(row.family),
        )
        for row in rows
    ]


def new_row(proposal: Proposal) -> ProposalRow:
    """A proposal's first row."""
    return ProposalRow(
        id=proposal.id,
        pool_id=proposal.pool_id,
        slot=proposal.slot,
        run_id=proposal.run_id,
        state=proposal.state,
        created_at=time.time(),
        document=proposal.model_dump(mode="json"),
    )


def proposal_of(row: ProposalRow) -> Proposal:
    """A row as a message."""
    return Proposal.model_validate(row.document)


def update_proposal(row: ProposalRow, proposal: Proposal) -> None:
    """Store a proposal again."""
    row.document, row.state = proposal.model_dump(mode="json"), proposal.state


def add_reason(proposal: Proposal, reason: str) -> str:
    """A reason behind what was said about the proposal before."""
    return f"{proposal.reason}; {reason}" if proposal.reason else reason


def measurement_of(row: MeasurementRow) -> Measurement:
    """A row as a message."""
    return Measurement.model_validate(
        {name: getattr(row, name) for name in Measurement.model_fields}
    )


def record_change(
    session: Session,
    action: str,
    subject: str,
    *,
    pool_id: str,
    who: Change,
    detail: Mapping[str, Any],
    slot: str | None = None,
) -> None:
    """Add one change to the record, in the transaction that makes it.

    Requests for changes stand in the same table, see `triforge.access.requests`.

    Args:
        session: the transaction.
        action: the thing and the verb, for example `task.pin`.
        subject: id of the thing.
        pool_id: the pool it belongs to.
        who: who did it and why, as far as they said.
        detail: what was there before and after.
        slot: the slot it belongs to, if it belongs to one.
    """
    asking = caller()
    session.add(
        AuditRow(
            at=time.time(),
            tenant=asking.tenant,
            key_id=asking.key_id,
            by=who.by or asking.name,
            action=action,
            subject=subject,
            pool_id=pool_id,
            slot=slot,
            reason=who.reason,
            detail=dict(detail),
        )
    )
