"""Rows of the database: find and lock them, and convert them to messages and back."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from triforge.access.callers import caller, own
from triforge.environments import registry
from triforge.errors import ConflictError, NotFoundError
from triforge.store.tables import PoolRow, ProposalRow, TaskRow
from triforge.types import Approval, PoolState, PoolStatus, Proposal, Task

_Row = TypeVar("_Row", TaskRow, ProposalRow)


def pool_row(session: Session, pool: str) -> PoolRow:
    """Return the row of a pool by id or name, among the pools that the caller may see.

    Raises:
        NotFoundError: the caller sees no such pool.
        ConflictError: the name belongs to pools of several tenants, none of them the caller's.
    """
    row = session.get(PoolRow, pool)
    if row is not None and caller().sees(row.tenant):
        return row
    named = session.scalars(select(PoolRow).where(PoolRow.name == pool, *own(PoolRow.tenant))).all()
    rows = [row for row in named if row.tenant == caller().tenant] or list(named)
    if not rows:
        raise _missing_pool(pool)
    if len(rows) > 1:
        ids = ", ".join(sorted(row.id for row in rows))
        raise ConflictError(
            f"pool {pool!r}: several tenants have a pool of this name; give one of the ids {ids}"
        )
    return rows[0]


def lock_pool(session: Session, pool_id: str) -> PoolRow:
    """Lock a pool until the end of the transaction; every change of its slots or plans needs the lock.

    PostgreSQL locks the row; SQLite has one writer at a time.
    """
    row = session.scalars(
        select(PoolRow)
        .where(PoolRow.id == pool_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
    if row is None:
        raise _missing_pool(pool_id)
    return row


def _missing_pool(pool: str) -> NotFoundError:
    return NotFoundError(f"pool {pool!r} does not exist; `triforge pool list` lists all")


def task_row(session: Session, task_id: str) -> TaskRow:
    """Return the row of a task version; raise NotFoundError if there is none."""
    return _row(session, TaskRow, "task", task_id)


def proposal_row(session: Session, proposal_id: str) -> ProposalRow:
    """Return the row of a proposal; raise NotFoundError if there is none."""
    return _row(session, ProposalRow, "proposal", proposal_id)


def _row(session: Session, kind: type[_Row], what: str, name: str) -> _Row:
    row = session.get(kind, name)
    if row is None or not caller().sees(session.get_one(PoolRow, row.pool_id).tenant):
        raise NotFoundError(
            f"{what} {name!r} does not exist; `triforge {what} list POOL` lists a pool's {what}s"
        )
    return row


def task_in(session: Session, task_id: str) -> Task:
    """Return a task version; raise NotFoundError if there is none."""
    row = task_row(session, task_id)
    return task_of(row, session.get_one(PoolRow, row.pool_id).family)


def task_of(row: TaskRow, family: str) -> Task:
    """Convert a row to a message."""
    fields = {name: getattr(row, name) for name in Task.model_fields if name != "family"}
    return Task.model_validate({**fields, "family": family})


def versions_of(session: Session, task: Task) -> tuple[Task, ...]:
    """Return all versions of a task's slot, the root first."""
    query = select(TaskRow).where(TaskRow.slot == task.slot).order_by(TaskRow.version)
    return tuple(task_of(row, task.family) for row in session.scalars(query))


def pool_states(session: Session, rows: Sequence[PoolRow]) -> list[PoolState]:
    """Convert rows of pools to messages, with the counts of their tasks and proposals."""
    ids = [row.id for row in rows]
    tasks: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: {"train": {}, "heldout": {}})
    for pool_id, split, state, count in session.execute(
        select(TaskRow.pool_id, TaskRow.split, TaskRow.state, func.count())
        .where(TaskRow.pool_id.in_(ids))
        .group_by(TaskRow.pool_id, TaskRow.split, TaskRow.state)
    ):
        tasks[pool_id][split][state] = count
    proposals: dict[str, Counter[str]] = defaultdict(Counter)
    controls: dict[str, Counter[str]] = defaultdict(Counter)
    # The JSON paths are named in a subquery: PostgreSQL does not see that two bound paths are the same expression.
    verdicts = (
        select(
            ProposalRow.pool_id,
            ProposalRow.state,
            ProposalRow.document["verdict"].as_string().label("verdict"),
            ProposalRow.document["null_control"].as_boolean().label("control"),
        )
        .where(ProposalRow.pool_id.in_(ids))
        .subquery()
    )
    grouped = session.execute(select(*verdicts.c, func.count()).group_by(*verdicts.c))
    for pool_id, state, verdict, control, count in map(tuple, grouped):
        if control:
            controls[pool_id][verdict or state] += count
        else:
            proposals[pool_id][state] += count
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
            **registry.traits(row.family),
        )
        for row in rows
    ]


def new_row(proposal: Proposal) -> ProposalRow:
    """Make the row of a new proposal."""
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
    """Convert a row to a message."""
    return Proposal.model_validate(row.document)


def change_proposal(row: ProposalRow, *, reason: str = "", **fields: Any) -> Proposal:
    """Store a proposal with other fields; `reason` is appended to the reasons before it."""
    proposal = proposal_of(row)
    if reason:
        fields["reason"] = f"{proposal.reason}; {reason}" if proposal.reason else reason
    proposal = proposal.model_copy(update=fields)
    row.document = proposal.model_dump(mode="json")
    row.state, row.run_id = proposal.state, proposal.run_id
    return proposal
