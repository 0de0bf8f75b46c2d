"""What people change by hand: pools and slots are paused, retired and pinned, rewrites approved, rejected and undone.

One transaction a change, with its row in the record. Asking for what is so already changes nothing and records nothing,
so every call may be repeated; what contradicts the present state is a `ConflictError`. `match` are the entity tags that
the caller knows, as in If-Match: what was changed since is a `PreconditionError`; None changes whatever is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from services.env_adapter.rows import (
    lock_pool,
    pool_row,
    pool_states,
    proposal_row,
    record_change,
    task_row,
)
from services.env_adapter.slots import (
    close_proposal,
    current,
    pool_tag,
    replace,
    slot_tag,
    successor,
    withdraw,
)
from triforge.errors import ConflictError, PreconditionError
from triforge.rollout.protocols import TaskDraft
from triforge.store.database import Database
from triforge.store.tables import PoolRow, ProposalRow, TaskRow
from triforge.types import Change, PoolChange, PoolState, PoolStatus, ProposalState, Rollback

TaskAction = Literal["pause", "resume", "retire", "pin", "unpin"]
Decision = Literal["approve", "reject"]

_STATE_AFTER = {"pause": "paused", "resume": "active", "retire": "retired"}


class Changes:
    """Makes changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set_pool(
        self, pool: str, to: PoolStatus, who: Change, *, match: str | None = None
    ) -> PoolState:
        """Pause, resume or retire a pool, by id or name. Retiring withdraws its open proposals and is for good."""

        def change(session: Session, row: PoolRow) -> None:
            if row.state == to:
                return
            if row.state == "retired":
                raise ConflictError(f"pool {row.name!r} is retired, which is for good")
            before, row.state = row.state, to
            gone: list[str] = []
            if to == "retired":
                why = _said("the pool was retired", who)
                gone = withdraw(session, [ProposalRow.pool_id == row.id], why)
            verb = {"active": "resume", "paused": "pause", "retired": "retire"}[to]
            detail = {"state": [before, to], "withdrawn": gone}
            record_change(session, f"pool.{verb}", row.id, pool_id=row.id, who=who, detail=detail)

        return self._pool(pool, change, match)

    def set_approval(self, pool: str, wanted: PoolChange, *, match: str | None = None) -> PoolState:
        """Say whether rewrites wait for a person."""

        def change(session: Session, row: PoolRow) -> None:
            if row.approval == wanted.approval:
                return
            before, row.approval = row.approval, wanted.approval
            record_change(
                session,
                "pool.approval",
                row.id,
                pool_id=row.id,
                who=Change(by=wanted.by, reason=wanted.reason),
                detail={"approval": [before, wanted.approval]},
            )

        return self._pool(pool, change, match)

    def _pool(
        self, pool: str, change: Callable[[Session, PoolRow], None], match: str | None
    ) -> PoolState:
        with self._database.write() as session:
            row = lock_pool(session, pool_row(session, pool).id)
            _demand(match, pool_tag(row))
            change(session, row)
            session.flush()
            return pool_states(session, [row])[0]

    def set_task(
        self, task_id: str, action: TaskAction, who: Change, *, match: str | None = None
    ) -> str:
        """Pause, resume, retire, pin or unpin the slot that a version belongs to; returns the current version's id.

        A slot that is paused, retired or pinned loses its open proposal. Retiring is for good.
        """
        with self._database.write() as session:
            row = _hold(session, task_id, match)
            if action in ("pin", "unpin"):
                detail = _pin(session, row, pinned=action == "pin")
            else:
                detail = _set_state(row, _STATE_AFTER[action])
            if detail is None:
                return row.id
            gone: list[str] = []
            if action in ("pause", "retire", "pin"):
                done = {"pause": "paused", "retire": "retired", "pin": "pinned"}[action]
                why = _said(f"the task was {done}", who)
                gone = withdraw(session, [ProposalRow.slot == row.slot], why)
            record_change(
                session,
                f"task.{action}",
                row.id,
                pool_id=row.pool_id,
                slot=row.slot,
                who=who,
                detail={**detail, "withdrawn": gone},
            )
            return row.id

    def roll_back(self, task_id: str, wanted: Rollback, *, match: str | None = None) -> str:
        """Undo the rewrites between an ancestor and the current version of a slot; returns the new version's id.

        The ancestor's content becomes a new version whose parent is the ancestor, so that the versions of a slot stay
        the order of what it has played. The versions that are undone, and the proposals that made them, become
        `rolled_back`; an open proposal is withdrawn. A slot that plays the ancestor's content already stays as it is.
        """
        who = Change(by=wanted.by, reason=wanted.reason)
        with self._database.write() as session:
            row = _hold(session, task_id, match)
            if row.state == "retired":
                raise ConflictError(f"task {row.slot} is retired, which is for good")
            undone, ancestor = _path(session, row, wanted.to)
            if row.parent_id == ancestor.id and row.params == ancestor.params:
                return row.id
            why = _said("the task was rolled back", who)
            gone = withdraw(session, [ProposalRow.slot == row.slot], why)
            state = row.state
            for version in undone:
                version.state = "rolled_back"
            session.flush()  # a slot has one active version at any moment
            draft = TaskDraft(
                params=ancestor.params, instruction=ancestor.instruction, kind=ancestor.kind
            )
            restored = successor(session, ancestor, draft, state=state)
            session.add(restored)
            ids = {version.id for version in undone}
            made = session.scalars(
                select(ProposalRow).where(
                    ProposalRow.slot == row.slot, ProposalRow.state == "accepted"
                )
            )
            for proposal in made.all():
                if proposal.document["candidate_id"] in ids:
                    close_proposal(proposal, "rolled_back", _said("rolled back", who))
            record_change(
                session,
                "task.rollback",
                restored.id,
                pool_id=row.pool_id,
                slot=row.slot,
                who=who,
                detail={
                    "from": row.id,
                    "to": ancestor.id,
                    "undone": sorted(ids),
                    "withdrawn": gone,
                },
            )
            return restored.id

    def decide(self, proposal_id: str, decision: Decision, who: Change) -> None:
        """Approve a rewrite that waits for a person, so that it replaces its task, or reject an open one."""
        with self._database.write() as session:
            lock_pool(session, proposal_row(session, proposal_id).pool_id)
            row = proposal_row(session, proposal_id)
            session.refresh(row)  # whoever had locked the pool may have moved it
            after: ProposalState = "accepted" if decision == "approve" else "rejected"
            if row.state == after:
                return
            if row.state != "awaiting" and (row.state, decision) != ("pending", "reject"):
                raise ConflictError(_undecidable(row, decision))
            candidate = session.get_one(TaskRow, row.document["candidate_id"])
            if decision == "approve":
                replace(session, session.get_one(TaskRow, row.document["parent_id"]), candidate)
            else:
                candidate.state = "rejected"
            before = row.state
            close_proposal(row, after, _said(f"{after} by hand", who))
            record_change(
                session,
                f"proposal.{decision}",
                row.id,
                pool_id=row.pool_id,
                slot=row.slot,
                who=who,
                detail={"state": [before, after]},
            )


def _hold(session: Session, task_id: str, match: str | None) -> TaskRow:
    """The current version of the slot of `task_id`, with its pool locked."""
    found = task_row(session, task_id)
    lock_pool(session, found.pool_id)
    session.expire_all()  # whoever had locked the pool may have moved the slot
    row = current(session, found.slot)
    _demand(match, slot_tag(row))
    return row


def _set_state(row: TaskRow, after: str) -> dict[str, Any] | None:
    if row.state == after:
        return None
    if row.state == "retired":
        raise ConflictError(f"task {row.slot} is retired, which is for good")
    before, row.state = row.state, after
    return {"state": [before, after]}


def _pin(session: Session, row: TaskRow, *, pinned: bool) -> dict[str, Any] | None:
    if row.pinned == pinned:
        return None
    session.execute(update(TaskRow).where(TaskRow.slot == row.slot).values(pinned=pinned))
    return {"pinned": [not pinned, pinned]}


def _path(session: Session, row: TaskRow, to: str) -> tuple[list[TaskRow], TaskRow]:
    """The versions from the current one up to the ancestor `to`, and the ancestor."""
    below, ancestors, above = [row], [], row.parent_id
    while above is not None:
        found = session.get_one(TaskRow, above)
        if found.id == to:
            return below, found
        below.append(found)
        ancestors.append(found.id)
        above = found.parent_id
    known = ", ".join(ancestors) or "none"
    raise ConflictError(
        f"to: given {to!r}, which is no ancestor of {row.id}; its ancestors: {known}"
    )


def _undecidable(row: ProposalRow, decision: Decision) -> str:
    if row.state == "pending":
        return (
            f"proposal {row.id} is still being measured; only one that is awaiting can be approved"
        )
    if row.state == "accepted":
        return f"proposal {row.id} is accepted already; roll its task back instead"
    can = "one that is awaiting" if decision == "approve" else "a pending or awaiting one"
    return f"proposal {row.id} is {row.state}; only {can} can still be decided"


def _said(what: str, who: Change) -> str:
    by = f" by {who.by}" if who.by else ""
    return f"{what}{by}: {who.reason}" if who.reason else what + by


def _demand(match: str | None, tag: str) -> None:
    if match is None or match.strip() == "*":
        return
    known = [item.strip().removeprefix("W/") for item in match.split(",")]
    if tag not in known:
        raise PreconditionError(
            f"If-Match: given {match}, but the present tag is {tag}: somebody changed it since; read it again"
        )
