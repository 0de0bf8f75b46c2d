"""Measurements and proposals in SQL; each transition is one transaction that is safe to repeat.

    train outcome     -> measurement (+ proposal: pending candidate, or invalid)
    measured pair     -> measurements, counts of the proposal, and the verdict of the test:
                         accepted: candidate active, parent replaced · rejected: candidate rejected, slot free again
                         awaiting: accepted in a pool where people approve; the candidate waits, the parent is played

A measurement is unique by its group, so a repeated delivery is counted once. Parent and candidate of a proposal are
played in one round. A pair counts only if both of its groups were measured, by policy versions at most `max_version_gap`
apart over both groups. A proposal names each discarded pair with the reason, and the next round plays another; after
`MAX_DISCARDED` of them the proposal is rejected unmeasured.

Limits of rewriting, for which a slot is not rewritten now; the distance from the root is a check of the candidate (`candidates`):

    of a slot    split, state, pin, an open proposal, rewrites in a row without a group inside the band
    of a pool    its state, the number of pending proposals
    of a run     the number of proposals
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Float, cast, func, select
from sqlalchemy.orm import Session

from services.env_adapter.adaptation.settings import AdaptSettings, RunOutcome
from services.env_adapter.pools.rows import (
    change_proposal,
    lock_pool,
    new_row,
    proposal_of,
    task_in,
    versions_of,
)
from services.env_adapter.pools.slots import held_out, replace, successor
from triforge.algorithms.acceptance import decide, paper_accepts
from triforge.rollout.adapting import identity
from triforge.rollout.protocols import TaskDraft
from triforge.rollout.seeds import derive_seed
from triforge.store.database import Database
from triforge.store.tables import MeasurementRow, PoolRow, ProposalRow, TaskRow
from triforge.types import AcceptanceTest, Proposal, Task

MAX_DISCARDED: Final = 12
_DECIDED: Final = ("accepted", "rejected", "awaiting", "rolled_back")

Pair = tuple[MeasurementRow, MeasurementRow]


def proposal_id(group_id: str) -> str:
    """Return the id of the only proposal that the outcome of a group may lead to."""
    return f"prop-{hashlib.sha256(group_id.encode()).hexdigest()[:20]}"


def new_proposal(outcome: RunOutcome, task: Task, **fields: Any) -> Proposal:
    """Make a proposal for the outcome's task; it is invalid until it has a candidate."""
    accuracy = outcome.successes / outcome.measured if outcome.measured else 0.0
    empty = dict.fromkeys(("diagnosis", "prompt", "answer"), "")
    return Proposal(
        id=proposal_id(outcome.group_id),
        pool_id=task.pool_id,
        slot=task.slot,
        parent_id=task.id,
        candidate_id=None,
        state="invalid",
        run_id=outcome.run_id,
        step=outcome.step,
        trigger_accuracy=accuracy,
        instruction_before=task.instruction,
        **{**empty, **fields},
    )


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """A slot that may be rewritten now: its active version, its first version, all versions with the parent, and the held-out tasks."""

    parent: Task
    root: Task
    earlier: tuple[Task, ...]
    heldout: tuple[TaskDraft, ...] = ()

    @property
    def tried(self) -> dict[str, Task]:
        """The parent and the candidates that it was measured with, by identity; an ancestor may come back."""
        mine = (task for task in self.earlier if task.version >= self.parent.version)
        return {identity(task.params): task for task in mine}


@dataclass(frozen=True, slots=True)
class Closed:
    """The reason why a slot is not rewritten now."""

    reason: str


class MeasurementStore:
    """Writes measurements, proposals and verdicts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, outcome: RunOutcome) -> Proposal | None:
        """Count a group once; return the proposal that it decides, if any."""
        with self._database.write() as session:
            lock_pool(session, outcome.pool_id)
            if session.get(MeasurementRow, outcome.group_id) is not None:
                return None
            columns = MeasurementRow.__table__.columns.keys()
            session.add(MeasurementRow(**outcome.model_dump(include=set(columns))))
            session.flush()
            row = session.get(ProposalRow, outcome.proposal_id) if outcome.proposal_id else None
            pair = _completed_pair(session, outcome)
            if row is None or row.state != "pending" or pair is None:
                return None
            proposal = _count(session, row, pair, outcome)
            return proposal if proposal.state != "pending" else None

    def open_slot(self, outcome: RunOutcome, *, in_work: int) -> OpenSlot | Closed:
        """Return the slot of the outcome's task, or why it may not be rewritten now; raise NotFoundError for an unknown task.

        `in_work` is the number of proposals of this pool that this process is writing.
        """
        with self._database.read() as session:
            task = task_in(session, outcome.task_id)
            if reason := _why_closed(session, task, outcome, in_work):
                return Closed(reason)
            versions = versions_of(session, task)
            others = held_out(session, task.pool_id)
            return OpenSlot(parent=task, root=versions[0], earlier=versions, heldout=others)

    def kept_original(self, outcome: RunOutcome) -> bool:
        """Return whether the outcome's slot keeps its original task."""
        with self._database.read() as session:
            task = task_in(session, outcome.task_id)
            return kept_original(session, task, outcome.settings.adaptation.original_share)

    def propose(
        self, outcome: RunOutcome, proposal: Proposal, candidate: TaskDraft | None
    ) -> Proposal | Closed:
        """Store a proposal with its candidate (None: it is invalid), unless a limit closed the slot in the meantime."""
        with self._database.write() as session:
            lock_pool(session, outcome.pool_id)
            if reason := _why_closed(session, task_in(session, proposal.parent_id), outcome):
                return Closed(reason)
            if candidate is None and _repeats(session, proposal):
                return Closed(proposal.reason)
            if candidate is not None:
                parent = session.get_one(TaskRow, proposal.parent_id)
                row = successor(session, parent, candidate, state="pending")
                session.add(row)
                made = {"candidate_id": row.id, "instruction_after": candidate.instruction}
                proposal = proposal.model_copy(update={"state": "pending", **made})
            session.add(new_row(proposal))
            return proposal


def _why_closed(session: Session, task: Task, outcome: RunOutcome, in_work: int = 0) -> str:
    if session.get(ProposalRow, proposal_id(outcome.group_id)) is not None:
        return "this group led to a proposal already"
    return why_closed(session, task, outcome, in_work=in_work)


def _repeats(session: Session, proposal: Proposal) -> bool:
    """Return whether the newest proposal of the slot is invalid for the same reason; it is stored once."""
    newest = session.scalars(
        select(ProposalRow)
        .where(ProposalRow.slot == proposal.slot)
        .order_by(ProposalRow.created_at.desc(), ProposalRow.id.desc())
        .limit(1)
    ).one_or_none()
    if proposal.answer or not proposal.reason or newest is None:
        return False
    before = proposal_of(newest)
    same = ("state", "run_id", "parent_id", "direction", "reason")
    return all(getattr(before, name) == getattr(proposal, name) for name in same)


def _completed_pair(session: Session, outcome: RunOutcome) -> Pair | None:
    """Return (parent, candidate) of the outcome's round once both are measured."""
    if outcome.proposal_id is None:
        return None
    rows = session.scalars(
        select(MeasurementRow).where(
            MeasurementRow.proposal_id == outcome.proposal_id,
            MeasurementRow.run_id == outcome.run_id,
            MeasurementRow.step == outcome.step,
        )
    )
    groups = {row.purpose: row for row in rows}
    if set(groups) != {"measure_parent", "measure_candidate"}:
        return None
    return groups["measure_parent"], groups["measure_candidate"]


def _count(session: Session, row: ProposalRow, pair: Pair, outcome: RunOutcome) -> Proposal:
    """Add a pair to the proposal, and decide it if the test does."""
    settings, before = outcome.settings, proposal_of(row)
    if reason := why_not_counted(pair, settings):
        discarded = (*before.discarded, f"step {outcome.step}: {reason}")
        proposal = change_proposal(row, discarded=discarded)
        if len(discarded) <= MAX_DISCARDED:
            return proposal
        session.get_one(TaskRow, proposal.candidate_id).state = "rejected"
        reason = f"withdrawn: none of {len(discarded)} pairs could be counted"
        return change_proposal(row, state="rejected", reason=reason, decided_step=outcome.step)
    parent, candidate = ((group.successes, group.measured) for group in pair)
    proposal = change_proposal(
        row,
        parent_counts=(*before.parent_counts, parent),
        candidate_counts=(*before.candidate_counts, candidate),
    )
    verdict, reason, test = judge(proposal, settings)
    proposal = change_proposal(row, test=test)
    if not verdict:
        return proposal
    state, reason = _move(session, proposal, verdict, reason)
    return change_proposal(
        row, state=state, verdict=verdict, reason=reason, decided_step=outcome.step
    )


def why_not_counted(pair: Pair, settings: AdaptSettings) -> str:
    """Return why a pair is not counted but played again; empty if it counts."""
    for group, name in zip(pair, ("parent", "candidate"), strict=True):
        if not group.measured:
            return f"no rollout of the {name} could be measured"
    oldest = min(group.policy_version for group in pair)
    newest = max(group.newest_version or group.policy_version for group in pair)
    if newest - oldest > settings.version_gap:
        return (
            f"the policy versions {oldest} to {newest} are more than {settings.version_gap} apart "
            "(adaptation.max_version_gap)"
        )
    return ""


def judge(proposal: Proposal, settings: AdaptSettings) -> tuple[str, str, AcceptanceTest]:
    """Apply the run's acceptance rule: return the verdict (empty for another pair), the reason and the test's numbers.

    `paper`: the published inequalities on one fresh group of the candidate and the accuracy that triggered the rewrite.
    `confident`: the sequential test of `triforge.algorithms.acceptance`, which does not use that selected accuracy.
    """
    algorithm = settings.algorithm
    low, high = algorithm.alpha_low, algorithm.alpha_high
    if algorithm.acceptance == "paper":
        successes, measured = proposal.candidate_counts[0]
        before, after = proposal.trigger_accuracy, successes / measured
        accepted = paper_accepts(proposal.direction, before, after, low, high)
        reason = f"published rule: accuracy {before:.3f} before, {after:.3f} after"
        test = AcceptanceTest(rule="paper", low=low, high=high)
        return "accepted" if accepted else "rejected", reason, test
    alpha, max_rollouts = algorithm.acceptance_alpha, settings.adaptation.max_rollouts
    decision = decide(
        proposal.direction,
        proposal.parent_counts,
        proposal.candidate_counts,
        low=low,
        high=high,
        alpha=alpha,
        max_rollouts=max_rollouts,
    )
    test = AcceptanceTest(
        rule="confident",
        low=low,
        high=high,
        alpha=alpha,
        max_rollouts=max_rollouts,
        looks=decision.looks,
        p_value=decision.p_value,
    )
    words = {"accept": "accepted", "reject": "rejected", "continue": ""}
    return words[decision.verdict], decision.reason, test


def _move(session: Session, proposal: Proposal, verdict: str, reason: str) -> tuple[str, str]:
    """Replace the parent or end the candidate; return the proposal's state and the reason."""
    parent = session.get_one(TaskRow, proposal.parent_id)
    candidate = session.get_one(TaskRow, proposal.candidate_id)
    state = verdict
    if proposal.null_control:
        state, reason = "rejected", f"null control, never used; the test: {reason}"
    elif verdict == "accepted":
        if parent.state != "active":
            state, reason = (
                "rejected",
                f"the parent became {parent.state} in the meantime; {reason}",
            )
        elif session.get_one(PoolRow, proposal.pool_id).approval == "manual":
            state = "awaiting"
    if state == "accepted":
        replace(session, parent, candidate)
    else:
        candidate.state = state
    return state, reason


# ---- limits ----


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
    if _proposals(session, ProposalRow.slot == task.slot, ProposalRow.state == "awaiting"):
        return "a rewrite of the slot waits for a person"
    if _proposals(session, ProposalRow.slot == task.slot, ProposalRow.state == "pending"):
        return "the slot has a pending proposal"
    return ""


def _run_limit(session: Session, task: Task, outcome: RunOutcome, in_work: int) -> str:
    limits = outcome.settings.adaptation
    pending = (ProposalRow.pool_id == task.pool_id, ProposalRow.state == "pending")
    if _proposals(session, *pending) + in_work >= limits.max_pending:
        return f"max_pending = {limits.max_pending} proposals are pending"
    made = _proposals(session, ProposalRow.run_id == outcome.run_id) + in_work
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


def _proposals(session: Session, *conditions: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count(ProposalRow.id)).where(*conditions)) or 0
