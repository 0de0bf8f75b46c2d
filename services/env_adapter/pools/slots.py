"""Changes of a slot's version; adapt workers, planner and people use the same functions.

A slot has exactly one version that is `active`, `paused` or `retired`: its current version. The caller has locked the
pool (`rows.lock_pool`) and owns the transaction, so other readers see a slot before or after a change.
"""

from __future__ import annotations

import time

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from services.env_adapter.pools.rows import change_proposal
from triforge.rollout.protocols import TaskDraft
from triforge.store.tables import ProposalRow, TaskRow

CURRENT = ("active", "paused", "retired")
OPEN = ("pending", "awaiting")  # proposals that may still replace their task


def current(session: Session, slot: str) -> TaskRow:
    """Return the current version of a slot."""
    query = select(TaskRow).where(TaskRow.slot == slot, TaskRow.state.in_(CURRENT))
    return session.scalars(query).one()


def held_out(session: Session, pool_id: str) -> tuple[TaskDraft, ...]:
    """Return the held-out tasks of a pool, which never change: no version of another slot may ask the same."""
    query = select(TaskRow.params, TaskRow.instruction, TaskRow.kind)
    rows = session.execute(query.where(TaskRow.pool_id == pool_id, TaskRow.split == "heldout"))
    return tuple(
        TaskDraft(params=params, instruction=text, kind=kind) for params, text, kind in rows
    )


def successor(session: Session, parent: TaskRow, draft: TaskDraft, *, state: str) -> TaskRow:
    """Make the next version of a slot from `parent`; the caller adds it to the session."""
    newest = session.scalar(select(func.max(TaskRow.version)).where(TaskRow.slot == parent.slot))
    version = (newest or 0) + 1
    return TaskRow(
        id=f"{parent.slot}-v{version}",
        pool_id=parent.pool_id,
        slot=parent.slot,
        version=version,
        parent_id=parent.id,
        split=parent.split,
        state=state,
        position=parent.position,
        instruction=draft.instruction,
        params=draft.params,
        kind=draft.kind,
        pinned=parent.pinned,
        created_at=time.time(),
    )


def replace(session: Session, parent: TaskRow, candidate: TaskRow) -> None:
    """Make the candidate the active version in place of its parent."""
    parent.state = "replaced"
    session.flush()  # a slot has one active version at any moment
    candidate.state = "active"


def withdraw(session: Session, condition: ColumnElement[bool], reason: str) -> None:
    """Reject the open proposals that meet a condition, and their candidates."""
    rows = session.scalars(
        select(ProposalRow).where(condition, ProposalRow.state.in_(OPEN)).order_by(ProposalRow.id)
    ).all()
    for row in rows:
        session.get_one(TaskRow, row.document["candidate_id"]).state = "rejected"
        change_proposal(row, state="rejected", reason=f"withdrawn: {reason}")


def withdraw_foreign(session: Session, pool_id: str, run_id: str) -> None:
    """Withdraw the proposals that other runs left pending: one run at a time uses a pool, so they are over."""
    foreign = and_(
        ProposalRow.pool_id == pool_id, ProposalRow.state == "pending", ProposalRow.run_id != run_id
    )
    reason = f"its run was over before the verdict; run {run_id} makes its own"
    withdraw(session, foreign, reason)
