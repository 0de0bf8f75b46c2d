"""Rows of the database: how they are found and locked, as messages, and the record of what people change."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from services.env_adapter.pools.requests import Change
from triforge.access.callers import caller, own
from triforge.environments import registry
from triforge.errors import ConflictError, NotFoundError
from triforge.store.tables import AuditRow, PoolRow, ProposalRow, TaskRow
from triforge.types import Approval, PoolState, PoolStatus, Proposal, Task

_Row = TypeVar("_Row", TaskRow, ProposalRow)


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
        raise NotFoundError(f"pool {pool!r} does not exist; `triforge pool list` lists all")
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
        raise NotFoundError(f"pool {pool_id!r} does not exist; `triforge pool list` lists all")
    return row


def task_row(session: Session, task_id: str) -> TaskRow:
    """The row of a task version; raises NotFoundError."""
    return _row(session, TaskRow, "task", task_id)


def proposal_row(session: Session, proposal_id: str) -> ProposalRow:
    """The row of a proposal; raises NotFoundError."""
    return _row(session, ProposalRow, "proposal", proposal_id)


def _row(session: Session, kind: type[_Row], what: str, name: str) -> _Row:
    row = session.get(kind, name)
    if row is None or not caller().sees(session.get_one(PoolRow, row.pool_id).tenant):
        raise NotFoundError(
            f"{what} {name!r} does not exist; `triforge {what} list POOL` lists a pool's {what}s"
        )
    return row


def task_in(session: Session, task_id: str) -> Task:
    """A task version; raises NotFoundError."""
    row = task_row(session, task_id)
    return task_of(row, session.get_one(PoolRow, row.pool_id).family)


def task_of(row: TaskRow, family: str) -> Task:
    """A row as a message."""
    fields = {name: getattr(row, name) for name in Task.model_fields if name != "family"}
    return Task.model_validate({**fields, "family": family})


def versions_of(session: Session, task: Task) -> tuple[Task, ...]:
    """All versions of a task's slot, the root first."""
    query = select(TaskRow).where(TaskRow.slot == task.slot).order_by(TaskRow.version)
    return tuple(task_of(row, task.family) for row in session.scalars(query))


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
    proposals: dict[str, Counter[str]] = defaultdict(Counter)
    controls: dict[str, Counter[str]] = defaultdict(Counter)
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
        if control:
            controls[pool_id][word or state] += count
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


def change_proposal(row: ProposalRow, *, reason: str = "", **fields: Any) -> Proposal:
    """Store a proposal with other fields; a reason stands behind what was said about it before."""
    proposal = proposal_of(row)
    if reason:
        fields["reason"] = f"{proposal.reason}; {reason}" if proposal.reason else reason
    proposal = proposal.model_copy(update=fields)
    row.document = proposal.model_dump(mode="json")
    row.state, row.run_id = proposal.state, proposal.run_id
    return proposal


def record_change(
    session: Session,
    action: str,
    subject: PoolRow | TaskRow | ProposalRow,
    who: Change,
    **detail: Any,
) -> None:
    """Record a change that a person made, in the transaction that makes it.

    `action` is the thing and the verb, for example `task.pin`; `detail` the values before and after.
    """
    asking = caller()
    session.add(
        AuditRow(
            at=time.time(),
            tenant=asking.tenant,
            key_id=asking.key_id,
            by=who.by or asking.name,
            action=action,
            subject=subject.id,
            pool_id=subject.id if isinstance(subject, PoolRow) else subject.pool_id,
            slot=None if isinstance(subject, PoolRow) else subject.slot,
            reason=who.reason,
            detail=detail,
        )
    )
