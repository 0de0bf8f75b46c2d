"""What people change by hand: pools and slots are paused, retired and pinned, rewrites approved, rejected and undone.

One transaction a change, with its row in the record. Asking for what is so already changes nothing and records nothing,
so every call may be repeated; what contradicts the present state is a `ConflictError`. `match` are the entity tags that
the caller knows, as in If-Match: what was changed since is a `PreconditionError`; None changes whatever is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from services.env_adapter.pools.requests import Change, PoolChange, Rollback
from services.env_adapter.pools.rows import (
    change_proposal,
    lock_pool,
    pool_row,
    pool_states,
    proposal_row,
    record_change,
    task_row,
)
from services.env_adapter.pools.slots import (
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
from triforge.types import PoolState, PoolStatus, ProposalState

TaskAction = Literal["pause", "resume", "retire", "pin", "unpin"]
Decision = Literal["approve", "reject"]

# The state after a verb, and what is then said of the thing.
_STATE_AFTER = {"pause": "paused", "resume": "active", "retire": "retired"}
_VERB = {state: verb for verb, state in _STATE_AFTER.items()}


class Changes:
    """Makes changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set_pool(
        self, pool: str, to: PoolStatus, who: Change, *, match: str | None = None
    ) -> PoolState:
        """Pause, resume or retire a pool, by id or name. Retiring withdraws its open proposals and is for good."""
        with self._pool(pool, match) as (session, row):
            if row.state != to:
                before = _move(row, f"pool {row.name!r}", to)
                gone: list[str] = []
                if to == "retired":
                    why = _said("the pool was retired", who)
                    gone = withdraw(session, ProposalRow.pool_id == row.id, why)
                change = {"state": [before, to], "withdrawn": gone}
                record_change(session, f"pool.{_VERB[to]}", row, who, **change)
            return _shown(session, row)

    def set_approval(self, pool: str, wanted: PoolChange, *, match: str | None = None) -> PoolState:
        """Say whether rewrites wait for a person."""
        with self._pool(pool, match) as (session, row):
            if row.approval != wanted.approval:
                before, row.approval = row.approval, wanted.approval
                change = [before, row.approval]
                record_change(session, "pool.approval", row, wanted, approval=change)
            return _shown(session, row)

    @contextmanager
    def _pool(self, pool: str, match: str | None) -> Iterator[tuple[Session, PoolRow]]:
        with self._database.write() as session:
            row = lock_pool(session, pool_row(session, pool).id)
            _demand(match, pool_tag(row))
            yield session, row

    def set_task(
        self, task_id: str, action: TaskAction, who: Change, *, match: str | None = None
    ) -> str:
        """Pause, resume, retire, pin or unpin the slot that a version belongs to; returns the current version's id.

        A slot that is paused, retired or pinned loses its open proposal. Retiring is for good.
        """
        with self._slot(task_id, match) as (session, row):
            if action in ("pin", "unpin"):
                pinned = action == "pin"
                if row.pinned == pinned:
                    return row.id
                session.execute(
                    update(TaskRow).where(TaskRow.slot == row.slot).values(pinned=pinned)
                )
                detail: dict[str, list[object]] = {"pinned": [not pinned, pinned]}
            else:
                after = _STATE_AFTER[action]
                if row.state == after:
                    return row.id
                detail = {"state": [_move(row, f"task {row.slot}", after), after]}
            gone: list[str] = []
            if action in ("pause", "retire", "pin"):
                done = {"pin": "pinned", **_STATE_AFTER}[action]
                why = _said(f"the task was {done}", who)
                gone = withdraw(session, ProposalRow.slot == row.slot, why)
            record_change(session, f"task.{action}", row, who, **detail, withdrawn=gone)
            return row.id

    def roll_back(self, task_id: str, wanted: Rollback, *, match: str | None = None) -> str:
        """Undo the rewrites between an ancestor and the current version of a slot; returns the new version's id.

        The ancestor's content becomes a new version whose parent is the ancestor, so that the versions of a slot stay
        the order of what it has played. The versions that are undone, and the proposals that made them, become
        `rolled_back`; an open proposal is withdrawn. A slot that plays the ancestor's content already stays as it is.
        """
        with self._slot(task_id, match) as (session, row):
            if row.state == "retired":
                raise ConflictError(f"task {row.slot} is retired, which is for good")
            undone, ancestor = _path(session, row, wanted.to)
            if row.parent_id == ancestor.id and row.params == ancestor.params:
                return row.id
            why = _said("the task was rolled back", wanted)
            gone = withdraw(session, ProposalRow.slot == row.slot, why)
            state, ids = row.state, sorted(version.id for version in undone)
            for version in undone:
                version.state = "rolled_back"
            session.flush()  # a slot has one active version at any moment
            draft = TaskDraft(
                params=ancestor.params, instruction=ancestor.instruction, kind=ancestor.kind
            )
            restored = successor(session, ancestor, draft, state=state)
            session.add(restored)
            taken = (ProposalRow.slot == row.slot, ProposalRow.state == "accepted")
            for made in session.scalars(select(ProposalRow).where(*taken)).all():
                if made.document["candidate_id"] in ids:
                    change_proposal(made, state="rolled_back", reason=_said("rolled back", wanted))
            change = {"from": row.id, "to": ancestor.id, "undone": ids, "withdrawn": gone}
            record_change(session, "task.rollback", restored, wanted, **change)
            return restored.id

    @contextmanager
    def _slot(self, task_id: str, match: str | None) -> Iterator[tuple[Session, TaskRow]]:
        """The current version of the slot of `task_id`, with its pool locked."""
        with self._database.write() as session:
            found = task_row(session, task_id)
            lock_pool(session, found.pool_id)
            session.expire_all()  # whoever had locked the pool may have moved the slot
            row = current(session, found.slot)
            _demand(match, slot_tag(row))
            yield session, row

    def decide(self, proposal_id: str, decision: Decision, who: Change) -> None:
        """Approve a rewrite that waits for a person, so that it replaces its task, or reject an open one."""
        with self._database.write() as session:
            lock_pool(session, proposal_row(session, proposal_id).pool_id)
            row = proposal_row(session, proposal_id)
            session.refresh(row)  # whoever had locked the pool may have moved it
            before = row.state
            after: ProposalState = "accepted" if decision == "approve" else "rejected"
            if before == after:
                return
            if before != "awaiting" and (before, decision) != ("pending", "reject"):
                raise ConflictError(_undecidable(row, decision))
            candidate = session.get_one(TaskRow, row.document["candidate_id"])
            if decision == "approve":
                replace(session, session.get_one(TaskRow, row.document["parent_id"]), candidate)
            else:
                candidate.state = "rejected"
            change_proposal(row, state=after, reason=_said(f"{after} by hand", who))
            record_change(session, f"proposal.{decision}", row, who, state=[before, after])


def _shown(session: Session, row: PoolRow) -> PoolState:
    session.flush()
    return pool_states(session, [row])[0]


def _move(row: PoolRow | TaskRow, name: str, after: str) -> str:
    """Give a thing another state, unless it is retired; returns the one before."""
    if row.state == "retired":
        raise ConflictError(f"{name} is retired, which is for good")
    before, row.state = row.state, after
    return before


def _path(session: Session, row: TaskRow, to: str) -> tuple[list[TaskRow], TaskRow]:
    """The versions from the current one up to the ancestor `to`, and the ancestor."""
    below = [row]
    while (above := below[-1].parent_id) is not None:
        found = session.get_one(TaskRow, above)
        if found.id == to:
            return below, found
        below.append(found)
    known = ", ".join(version.id for version in below[1:]) or "none"
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
