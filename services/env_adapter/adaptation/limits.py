"""The limits of rewriting: reasons why a slot is not rewritten now.

    of a slot    split, state, pin, an open proposal, rewrites in a row without a group inside the band
    of a pool    its state, the number of pending proposals
    of a run     the number of proposals

The distance of a candidate from the root is a check of the candidate (`candidates`).
"""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import ColumnElement, Float, cast, func, select
from sqlalchemy.orm import Session

from services.env_adapter.adaptation.settings import RunOutcome
from services.env_adapter.pools.rows import proposal_of
from triforge.rollout.seeds import derive_seed
from triforge.store.tables import MeasurementRow, PoolRow, ProposalRow, TaskRow
from triforge.types import Proposal, Task

_DECIDED = ("accepted", "rejected", "awaiting", "rolled_back")


def why_closed(session: Session, task: Task, outcome: RunOutcome, *, in_work: int) -> str:
    """Return why the outcome's task may not be rewritten now; empty if it may.

    `in_work` is the number of proposals of the pool that this process is writing. The answer holds while the session has
    locked the pool.
    """
    return _slot_limit(session, task) or _run_limit(session, task, outcome, in_work)


def _slot_limit(session: Session, task: Task) -> str:
    pool = session.get_one(PoolRow, task.pool_id)
    if task.split != "train":
        return "held-out tasks are never rewritten"
    if task.state != "active":
        return f"the version is {task.state}, only an active one is rewritten"
    if task.pinned:
        return "the task is pinned: it is never rewritten"
    if pool.state != "active":
        return f"the pool is {pool.state}"
    if _count(session, ProposalRow.slot == task.slot, ProposalRow.state == "awaiting"):
        return "a rewrite of the slot waits for a person"
    if _count(session, ProposalRow.slot == task.slot, ProposalRow.state == "pending"):
        return "the slot has a pending proposal"
    return ""


def _run_limit(session: Session, task: Task, outcome: RunOutcome, in_work: int) -> str:
    limits = outcome.settings.adaptation
    pending = (ProposalRow.pool_id == task.pool_id, ProposalRow.state == "pending")
    if _count(session, *pending) + in_work >= limits.max_pending:
        return f"max_pending = {limits.max_pending} proposals are pending"
    made = _count(session, ProposalRow.run_id == outcome.run_id) + in_work
    if limits.max_proposals and made >= limits.max_proposals:
        return f"max_proposals = {limits.max_proposals} were made"
    if limits.max_consecutive and _in_a_row(session, task.slot, outcome) >= limits.max_consecutive:
        return (
            f"max_consecutive = {limits.max_consecutive} rewrites of this slot came in a row without a group inside "
            "the band"
        )
    return ""


def _in_a_row(session: Session, slot: str, outcome: RunOutcome) -> int:
    """Count the measured rewrites of the slot by this run since its last training group inside the band."""
    band = outcome.settings.algorithm
    accuracy = cast(MeasurementRow.successes, Float) / func.nullif(MeasurementRow.measured, 0)
    inside = session.scalar(
        select(func.max(MeasurementRow.step))
        .join(TaskRow, TaskRow.id == MeasurementRow.task_id)
        .where(
            TaskRow.slot == slot,
            MeasurementRow.run_id == outcome.run_id,
            MeasurementRow.purpose == "train",
            accuracy.between(band.alpha_low, band.alpha_high),
        )
    )
    decided = _decided(session, ProposalRow.slot == slot, ProposalRow.run_id == outcome.run_id)
    return sum(inside is None or proposal.step > inside for proposal in decided)


def kept_original(session: Session, task: Task, share: float) -> bool:
    """Return whether the task's slot keeps its original task (see `originals`)."""
    where = (TaskRow.pool_id == task.pool_id, TaskRow.split == "train", TaskRow.version == 0)
    slots = session.scalar(select(func.count(TaskRow.id)).where(*where)) or 0
    return session.get_one(TaskRow, task.id).position in originals(task.pool_id, slots, share)


@lru_cache(maxsize=64)
def originals(pool_id: str, slots: int, share: float) -> frozenset[int]:
    """Return the positions of the training slots that keep their tasks: the first `share` by a digest, the same for every run."""
    ranked = sorted(
        range(slots), key=lambda position: (derive_seed(pool_id, "original", position), position)
    )
    return frozenset(ranked[: round(share * slots)])


def _decided(session: Session, *conditions: ColumnElement[bool]) -> list[Proposal]:
    """Return decided proposals without null controls."""
    query = select(ProposalRow).where(*conditions, ProposalRow.state.in_(_DECIDED))
    return [p for p in map(proposal_of, session.scalars(query)) if not p.null_control]


def _count(session: Session, *conditions: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count(ProposalRow.id)).where(*conditions)) or 0
