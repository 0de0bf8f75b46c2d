"""The caps: why a slot is not rewritten now, and why an accepted rewrite is not taken.

    of a slot    split, state, pin, what is pending, rewrites in a row without a group inside the band
    of a pool    paused, what is pending
    of a run     proposals in all, share of accepted ones among its last decisions

How far a candidate may lie from the root is a check of the candidate (`checks`), how many rewritten tasks a step may
play is the plan's business (`share_of_originals`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from services.env_adapter.rows import proposal_of
from triforge.rollout.seeds import derive_seed
from triforge.store.tables import MeasurementRow, PoolRow, ProposalRow, TaskRow
from triforge.types import AdaptSettings, PlannedGroup, Proposal, Task, TaskOutcome

_DECIDED = ("accepted", "rejected", "awaiting", "rolled_back")


def why_closed(session: Session, task: Task, outcome: TaskOutcome, *, drafting: int) -> str:
    """Why the task may not be rewritten now; empty if it may.

    Args:
        session: reads; holds the pool where the answer has to last.
        task: of the outcome.
        outcome: of a group of it.
        drafting: proposals of the pool that this process is drafting already.
    """
    settings = outcome.settings
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
    pending = (ProposalRow.pool_id == task.pool_id, ProposalRow.state == "pending")
    if _count(session, *pending) + drafting >= settings.adaptation.max_pending:
        return f"max_pending = {settings.adaptation.max_pending} proposals are pending"
    made = _count(session, ProposalRow.run_id == outcome.run_id) + drafting
    if settings.adaptation.max_proposals and made >= settings.adaptation.max_proposals:
        return f"max_proposals = {settings.adaptation.max_proposals} were made"
    row = in_a_row(session, task.slot, outcome) if settings.adaptation.max_consecutive else 0
    if settings.adaptation.max_consecutive and row >= settings.adaptation.max_consecutive:
        return (
            f"max_consecutive = {settings.adaptation.max_consecutive} rewrites of this slot came in a row without a group inside "
            "the band"
        )
    return ""


def in_a_row(session: Session, slot: str, outcome: TaskOutcome) -> int:
    """Measured rewrites of the slot by this run since its last training group inside the band."""
    settings = outcome.settings
    inside = -1
    for step, successes, measured in session.execute(
        select(MeasurementRow.step, MeasurementRow.successes, MeasurementRow.measured)
        .join(TaskRow, TaskRow.id == MeasurementRow.task_id)
        .where(
            TaskRow.slot == slot,
            MeasurementRow.run_id == outcome.run_id,
            MeasurementRow.purpose == "train",
            MeasurementRow.measured > 0,
        )
    ):
        if settings.algorithm.alpha_low <= successes / measured <= settings.algorithm.alpha_high:
            inside = max(inside, step)
    made = session.scalars(
        select(ProposalRow).where(
            ProposalRow.slot == slot,
            ProposalRow.run_id == outcome.run_id,
            ProposalRow.state.in_(_DECIDED),
        )
    )
    return sum(
        1
        for proposal in map(proposal_of, made)
        if proposal.step > inside and not proposal.null_control
    )


def over_acceptance(session: Session, proposal: Proposal, settings: AdaptSettings) -> str:
    """Why one more accepted rewrite would be too many among the run's last decisions; empty if it is not."""
    if settings.adaptation.max_acceptance >= 1.0:
        return ""
    rows = session.scalars(
        select(ProposalRow).where(
            ProposalRow.run_id == proposal.run_id, ProposalRow.state.in_(_DECIDED)
        )
    )
    decided = [
        p for p in map(proposal_of, rows) if p.decided_step is not None and not p.null_control
    ]
    decided.sort(key=lambda p: (p.decided_step or 0, p.id))
    window = decided[max(0, len(decided) - settings.adaptation.acceptance_window + 1) :]
    taken = sum(p.state != "rejected" for p in window)
    if taken + 1 <= settings.adaptation.max_acceptance * settings.adaptation.acceptance_window:
        return ""
    return (
        f"{taken} of the last {len(window)} decisions were accepted already, allowed are "
        f"{settings.adaptation.max_acceptance:.0%} of {settings.adaptation.acceptance_window} (adaptation.max_acceptance)"
    )


def kept_original(session: Session, task: Task, share: float) -> bool:
    """Whether the task's slot is one of the share of its pool that is never rewritten (see `originals`)."""
    where = (TaskRow.pool_id == task.pool_id, TaskRow.split == "train", TaskRow.version == 0)
    slots = session.scalar(select(func.count(TaskRow.id)).where(*where)) or 0
    return session.get_one(TaskRow, task.id).position in originals(task.pool_id, slots, share)


@lru_cache(maxsize=64)
def originals(pool_id: str, slots: int, share: float) -> frozenset[int]:
    """The places of a pool's training slots that are never rewritten.

    The slots are ranked by a digest of the pool's id and their place, and the first `share` of them are kept, whichever
    run asks: what one run kept original is original for the next.
    """
    ranked = sorted(
        range(slots), key=lambda place: (derive_seed(pool_id, "original", place), place)
    )
    return frozenset(ranked[: round(share * slots)])


def share_of_originals(groups: Sequence[PlannedGroup], max_adapted: float) -> list[PlannedGroup]:
    """The groups of a plan with so many rewritten versions as are allowed; the slots beyond that play their roots."""
    left = len(groups) if max_adapted >= 1.0 else int(max_adapted * len(groups))
    out: list[PlannedGroup] = []
    for group in groups:
        adapted = group.task_id != group.slot
        root = adapted and left <= 0
        left -= adapted
        out.append(group.model_copy(update={"task_id": group.slot}) if root else group)
    return out


def _count(session: Session, *wanted: object) -> int:
    return session.scalar(select(func.count(ProposalRow.id)).where(*wanted)) or 0  # type: ignore[arg-type]
