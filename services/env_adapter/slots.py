"""How a slot moves from one version to the next; the adapt worker and people move slots by the same few steps.

A slot has exactly one version that is `active`, `paused` or `retired`: its current one. The caller has locked the pool
(`rows.lock_pool`) and owns the transaction, so a slot is seen before a move or after it, and never in between.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from services.env_adapter.rows import add_reason, proposal_of, update_proposal
from triforge.rollout.protocols import TaskDraft
from triforge.store.tables import PoolRow, ProposalRow, TaskRow
from triforge.types import PoolState, ProposalState

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


def close_proposal(row: ProposalRow, state: ProposalState, reason: str) -> None:
    """Give a proposal its last state; what was said about it before stays in front of the reason."""
    proposal = proposal_of(row)
    update = {"state": state, "reason": add_reason(proposal, reason)}
    update_proposal(row, proposal.model_copy(update=update))


def withdraw(session: Session, wanted: Sequence[ColumnElement[bool]], reason: str) -> list[str]:
    """Reject the open proposals that meet the conditions, with their candidates; returns their ids."""
    rows = session.scalars(
        select(ProposalRow).where(*wanted, ProposalRow.state.in_(OPEN)).order_by(ProposalRow.id)
    ).all()
    for row in rows:
        session.get_one(TaskRow, proposal_of(row).candidate_id).state = "rejected"
        close_proposal(row, "rejected", f"withdrawn: {reason}")
    return [row.id for row in rows]
