"""How a slot moves from one version to the next; the adapt worker and people move slots by the same few steps.

A slot has exactly one version that is `active`, `paused` or `retired`: its current one. The caller has locked the pool
(`rows.lock_pool`) and owns the transaction, so a slot is seen before a move or after it, and never in between.
"""

from __future__ import annotations

import hashlib
import time

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from services.env_adapter.pools.rows import change_proposal
from triforge.rollout.protocols import TaskDraft
from triforge.store.tables import PoolRow, ProposalRow, TaskRow
from triforge.types import PoolState

CURRENT = ("active", "paused", "retired")
OPEN = ("pending", "awaiting")  # proposals that may still replace their task


def current(session: Session, slot: str) -> TaskRow:
    """The version that a slot plays, or would play if it were not paused or retired."""
    found = select(TaskRow).where(TaskRow.slot == slot, TaskRow.state.in_(CURRENT))
    return session.scalars(found).one()


def slot_tag(row: TaskRow) -> str:
    """The entity tag of what people change about a slot: its current version, whether it is played, whether pinned."""
    return _tag(row.id, row.state, str(row.pinned))


def pool_tag(pool: PoolRow | PoolState) -> str:
    """The entity tag of what people change about a pool."""
    return _tag(pool.id, pool.state, pool.approval)


def _tag(*parts: str) -> str:
    return f'"{hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]}"'


def successor(session: Session, parent: TaskRow, draft: TaskDraft, *, state: str) -> TaskRow:
    """The next version of a slot, made from `parent`; not added to the session yet."""
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
    """Play the candidate in its parent's place."""
    parent.state = "replaced"
    session.flush()  # a slot has one active version at any moment
    candidate.state = "active"


def withdraw(session: Session, which: ColumnElement[bool], reason: str) -> list[str]:
    """Reject the open proposals that meet a condition, with their candidates; returns their ids."""
    rows = session.scalars(
        select(ProposalRow).where(which, ProposalRow.state.in_(OPEN)).order_by(ProposalRow.id)
    ).all()
    for row in rows:
        session.get_one(TaskRow, row.document["candidate_id"]).state = "rejected"
        change_proposal(row, state="rejected", reason=f"withdrawn: {reason}")
    return [row.id for row in rows]


def take_over(session: Session, pool_id: str, run_id: str, *, adopt: bool) -> None:
    """Go on with what other runs have left pending in a pool that the session holds, or (not `adopt`) withdraw it.

    Runs of a deployment come one after another, so whoever made it plays no more. The pairs that were counted stay
    valid: each compares parent and candidate under one policy, whichever that was.
    """
    foreign = and_(
        ProposalRow.pool_id == pool_id, ProposalRow.state == "pending", ProposalRow.run_id != run_id
    )
    if not adopt:
        reason = f"its run was over before the verdict; run {run_id} makes its own"
        withdraw(session, foreign, reason)
        return
    for row in session.scalars(select(ProposalRow).where(foreign)).all():
        change_proposal(row, run_id=run_id, reason=f"taken over from run {row.run_id}")
