"""Changes that people make: pools and slots are paused, retired and pinned, rewrites approved, rejected and undone.

Each change is one transaction and is logged. A request for the present state changes nothing, so every request may be
repeated; one that contradicts the present state is a ConflictError.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, Literal

from pydantic import Field
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from services.env_adapter.pools.rows import (
    change_proposal,
    lock_pool,
    pool_row,
    pool_states,
    proposal_row,
    task_row,
)
from services.env_adapter.pools.slots import current, replace, successor, withdraw
from triforge.access.callers import caller
from triforge.errors import ConflictError
from triforge.rollout.protocols import TaskDraft
from triforge.store.database import Database
from triforge.store.tables import PoolRow, ProposalRow, TaskRow
from triforge.types import Approval, Message, PoolState, ProposalState

PoolAction = Literal["pause", "resume", "retire"]
TaskAction = Literal["pause", "resume", "retire", "pin", "unpin"]
Decision = Literal["approve", "reject"]

_STATE_AFTER: Final = {"pause": "paused", "resume": "active", "retire": "retired"}
_log = logging.getLogger(__name__)


class Change(Message):
    """The author of a change and the reason for it; both may be empty, and so may the whole body.

    Produced by: people. Consumed by: env_adapter (`POST` of pause, resume, retire, pin, unpin, approve, reject).
    """

    by: Annotated[str, Field(max_length=200)] = ""
    reason: Annotated[str, Field(max_length=2000)] = ""

    def sentence(self, event: str) -> str:
        """Describe an event with its author and reason."""
        by = f" by {self.by}" if self.by else ""
        return f"{event}{by}: {self.reason}" if self.reason else event + by


class PoolChange(Change):
    """A change of a pool's settings. Produced by: people. Consumed by: env_adapter (`PATCH /v1/pools/{pool}`).

    Candidates that wait for a person when `approval` becomes "automatic" keep waiting.
    """

    approval: Approval


class Rollback(Change):
    """A request to undo rewrites. Produced by: people. Consumed by: env_adapter (`POST /v1/tasks/{id}/rollback`).

    `to` is an ancestor of the slot's current version.
    """

    to: Annotated[str, Field(min_length=1, max_length=64)]


class Changes:
    """Makes changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set_pool(self, pool: str, action: PoolAction, change: Change) -> PoolState:
        """Pause, resume or retire a pool, by id or name. Retiring is final and withdraws the pool's open proposals."""
        with self._pool(pool) as (session, row):
            if _move(row, f"pool {row.name!r}", _STATE_AFTER[action]) and action == "retire":
                reason = change.sentence("the pool was retired")
                withdraw(session, ProposalRow.pool_id == row.id, reason)
            _log_change(f"pool {row.id}: {action}", change)
            return _shown(session, row)

    def set_approval(self, pool: str, change: PoolChange) -> PoolState:
        """Choose whether rewrites of a pool wait for a person."""
        with self._pool(pool) as (session, row):
            row.approval = change.approval
            _log_change(f"pool {row.id}: approval {row.approval}", change)
            return _shown(session, row)

    @contextmanager
    def _pool(self, pool: str) -> Iterator[tuple[Session, PoolRow]]:
        with self._database.write() as session:
            yield session, lock_pool(session, pool_row(session, pool).id)

    def set_task(self, task_id: str, action: TaskAction, change: Change) -> str:
        """Pause, resume, retire, pin or unpin the slot of a version; return the id of its current version.

        A slot that is paused, retired or pinned loses its open proposal. Retiring is final.
        """
        with self._slot(task_id) as (session, row):
            pinned = action == "pin"
            if action in ("pin", "unpin"):
                changed = row.pinned != pinned
                slot = update(TaskRow).where(TaskRow.slot == row.slot)
                session.execute(slot.values(pinned=pinned))
            else:
                changed = _move(row, f"task {row.slot}", _STATE_AFTER[action])
            if changed and action in ("pause", "retire", "pin"):
                done = "pinned" if pinned else _STATE_AFTER[action]
                reason = change.sentence(f"the task was {done}")
                withdraw(session, ProposalRow.slot == row.slot, reason)
            _log_change(f"task {row.id}: {action}", change)
            return row.id

    def roll_back(self, task_id: str, rollback: Rollback) -> str:
        """Undo the rewrites between an ancestor and the current version of a slot; return the id of the new version.

        The ancestor's content becomes a new version whose parent is the ancestor, so the versions of a slot stay in the
        order in which they were played. The versions that are undone, and their proposals, become `rolled_back`; an open
        proposal is withdrawn. A slot that plays the ancestor's content already stays as it is.
        """
        with self._slot(task_id) as (session, row):
            if row.state == "retired":
                raise _final(f"task {row.slot}")
            undone, ancestor = _path(session, row, rollback.to)
            if row.parent_id == ancestor.id and row.params == ancestor.params:
                return row.id
            reason = rollback.sentence("the task was rolled back")
            withdraw(session, ProposalRow.slot == row.slot, reason)
            state, ids = row.state, {version.id for version in undone}
            for version in undone:
                version.state = "rolled_back"
            session.flush()  # a slot has one active version at any moment
            draft = TaskDraft(
                params=ancestor.params, instruction=ancestor.instruction, kind=ancestor.kind
            )
            restored = successor(session, ancestor, draft, state=state)
            session.add(restored)
            accepted = (ProposalRow.slot == row.slot, ProposalRow.state == "accepted")
            for made in session.scalars(select(ProposalRow).where(*accepted)).all():
                if made.document["candidate_id"] in ids:
                    reason = rollback.sentence("rolled back")
                    change_proposal(made, state="rolled_back", reason=reason)
            _log_change(f"task {row.id}: rolled back to {ancestor.id}", rollback)
            return restored.id

    @contextmanager
    def _slot(self, task_id: str) -> Iterator[tuple[Session, TaskRow]]:
        """Lock the pool of a version, and yield the current version of its slot."""
        with self._database.write() as session:
            version = task_row(session, task_id)
            lock_pool(session, version.pool_id)
            session.expire_all()  # the slot may have changed while the lock was waited for
            yield session, current(session, version.slot)

    def decide(self, proposal_id: str, decision: Decision, change: Change) -> None:
        """Approve a rewrite that waits for a person, so that it replaces its task, or reject an open one."""
        with self._database.write() as session:
            row = proposal_row(session, proposal_id)
            lock_pool(session, row.pool_id)
            session.refresh(row)  # the proposal may have changed while the lock was waited for
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
            change_proposal(row, state=after, reason=change.sentence(f"{after} by hand"))
            _log_change(f"proposal {row.id}: {after}", change)


def _log_change(event: str, change: Change) -> None:
    _log.info("%s (key %r)", change.sentence(event), caller().name)


def _shown(session: Session, row: PoolRow) -> PoolState:
    session.flush()
    return pool_states(session, [row])[0]


def _move(row: PoolRow | TaskRow, name: str, after: str) -> bool:
    """Set a state and return whether it changed; raise ConflictError if the present one is final."""
    if row.state == after:
        return False
    if row.state == "retired":
        raise _final(name)
    row.state = after
    return True


def _final(name: str) -> ConflictError:
    return ConflictError(f"{name} is retired, which is final")


def _path(session: Session, row: TaskRow, to: str) -> tuple[list[TaskRow], TaskRow]:
    """Return the versions from the current one up to the ancestor `to`, and the ancestor."""
    below = [row]
    while (above := below[-1].parent_id) is not None:
        version = session.get_one(TaskRow, above)
        if version.id == to:
            return below, version
        below.append(version)
    known = ", ".join(version.id for version in below[1:]) or "none"
    raise ConflictError(f"to: given {to!r}, expected an ancestor of {row.id}: {known}")


def _undecidable(row: ProposalRow, decision: Decision) -> str:
    if row.state == "accepted":
        return f"proposal {row.id} is accepted already; roll its task back instead"
    allowed = "awaiting" if decision == "approve" else "pending or awaiting"
    return f"{decision}: proposal {row.id} is {row.state}, expected one that is {allowed}"
