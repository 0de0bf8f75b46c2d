"""The states of slots and proposals in SQL; one transaction a transition, all of them safe to repeat.

    train outcome     -> measurement (+ proposal: pending candidate, or invalid)
    measured pair     -> measurements, counts of the proposal, and when the test says so:
                         accepted: candidate active, parent replaced · rejected: candidate rejected, slot free again
                         awaiting: accepted in a pool where people approve; the candidate waits, the parent is played

A measurement is unique by its group, so what a repeated delivery brings is counted once; a crash leaves a slot either
before a transition or after it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.env_adapter.adaptation.caps import kept_original, why_closed
from services.env_adapter.adaptation.pairs import weigh
from services.env_adapter.rows import lock_pool, new_row, proposal_of, task_in, task_of
from services.env_adapter.slots import successor
from triforge.rollout.protocols import TaskDraft
from triforge.store.database import Database
from triforge.store.tables import MeasurementRow, ProposalRow, TaskRow
from triforge.types import Proposal, Task, TaskOutcome


def proposal_id(group_id: str) -> str:
    """The id of the proposal that a group's outcome may lead to: at most one, however often the outcome arrives."""
    return f"prop-{hashlib.sha256(group_id.encode()).hexdigest()[:20]}"


@dataclass(frozen=True, slots=True)
class Opening:
    """A slot that may be rewritten now.

    Attributes:
        parent: the active version.
        root: the slot's first version.
        earlier: all versions the slot ever had, the parent among them.
    """

    parent: Task
    root: Task
    earlier: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """Why a slot is not rewritten now."""

    reason: str


class Ledger:
    """Writes measurements, proposals and verdicts.

    Args:
        database: at head.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, outcome: TaskOutcome) -> Proposal | None:
        """Count a group once; the proposal comes back if this group brought its verdict.

        Raises:
            NotFoundError: there is no such pool.
        """
        with self._database.write() as session:
            lock_pool(session, outcome.pool_id)
            if session.get(MeasurementRow, outcome.group_id) is not None:
                return None
            session.add(_measurement(outcome))
            session.flush()
            if outcome.proposal_id is None:
                return None
            row = session.get(ProposalRow, outcome.proposal_id)
            if row is None or row.state != "pending":
                return None
            return weigh(session, row, outcome)

    def opening(self, outcome: TaskOutcome, *, drafting: int) -> Opening | Closed:
        """Whether the outcome's task may be rewritten now.

        Args:
            outcome: of a group of the task.
            drafting: proposals of this pool that this process is drafting already.

        Raises:
            NotFoundError: there is no such task.
        """
        with self._database.read() as session:
            task = task_in(session, outcome.task_id)
            if session.get(ProposalRow, proposal_id(outcome.group_id)) is not None:
                return Closed("this group led to a proposal already")
            reason = why_closed(session, task, outcome, drafting=drafting)
            if reason:
                return Closed(reason)
            return opening_of(session, task)

    def kept_original(self, outcome: TaskOutcome) -> bool:
        """Whether the outcome's slot belongs to the share of its pool that is never rewritten.

        Raises:
            NotFoundError: there is no such task.
        """
        with self._database.read() as session:
            task = task_in(session, outcome.task_id)
            return kept_original(session, task, outcome.settings.adaptation.original_share)

    def propose(
        self, outcome: TaskOutcome, proposal: Proposal, draft: TaskDraft | None
    ) -> Proposal | Closed:
        """Store a proposal, with its candidate if it has one, unless the slot was closed in the meantime.

        Args:
            outcome: what asked for it.
            proposal: without candidate id, state and instruction of the candidate.
            draft: the candidate, or None for an invalid proposal.
        """
        with self._database.write() as session:
            lock_pool(session, outcome.pool_id)
            parent = task_in(session, proposal.parent_id)
            if session.get(ProposalRow, proposal.id) is not None:
                return Closed("this group led to a proposal already")
            reason = why_closed(session, parent, outcome, drafting=0)
            if reason:
                return Closed(reason)
            if draft is None and _said_before(session, proposal):
                return Closed(proposal.reason)
            stored = proposal.model_copy(update={"state": "invalid"})
            if draft is not None:
                row = session.get_one(TaskRow, parent.id)
                candidate = successor(session, row, draft, state="pending")
                session.add(candidate)
                stored = proposal.model_copy(
                    update={
                        "state": "pending",
                        "candidate_id": candidate.id,
                        "instruction_after": draft.instruction,
                    }
                )
            session.add(new_row(stored))
            return stored


def opening_of(session: Session, task: Task) -> Opening:
    """The slot of a task as drafting sees it."""
    rows = session.scalars(
        select(TaskRow).where(TaskRow.slot == task.slot).order_by(TaskRow.version)
    )
    versions = tuple(task_of(row, task.family) for row in rows)
    return Opening(parent=task, root=versions[0], earlier=versions)


def _said_before(session: Session, proposal: Proposal) -> bool:
    """Whether the newest proposal of the slot is invalid for the very same reason: saying it once is enough."""
    if proposal.answer or not proposal.reason:
        return False
    newest = session.scalars(
        select(ProposalRow)
        .where(ProposalRow.slot == proposal.slot)
        .order_by(ProposalRow.created_at.desc(), ProposalRow.id.desc())
        .limit(1)
    ).one_or_none()
    if newest is None or newest.state != "invalid" or newest.run_id != proposal.run_id:
        return False
    before = proposal_of(newest)
    return (before.parent_id, before.direction, before.reason) == (
        proposal.parent_id,
        proposal.direction,
        proposal.reason,
    )


def _measurement(outcome: TaskOutcome) -> MeasurementRow:
    return MeasurementRow(
        group_id=outcome.group_id,
        run_id=outcome.run_id,
        step=outcome.step,
        task_id=outcome.task_id,
        purpose=outcome.purpose,
        proposal_id=outcome.proposal_id,
        successes=outcome.successes,
        measured=outcome.measured,
        rollouts=outcome.rollouts,
        policy_version=outcome.policy_version,
        newest_version=outcome.newest_version,
    )
