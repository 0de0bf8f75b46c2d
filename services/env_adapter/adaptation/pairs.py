"""Pairs of measured groups, what the acceptance rule says of them, and the move of the slot that follows.

Parent and candidate of a proposal are offered together, in one round. A pair counts only if both of its groups were
measured, and by policy versions that lie at most `max_version_gap` apart, first to last over both groups: with training
under way beside the rollouts, a group may span several. A pair that does not count is named in the proposal with the
reason, and the next round plays another; after `MAX_DISCARDED` of them the proposal is given up unmeasured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.env_adapter.adaptation.caps import over_acceptance
from services.env_adapter.rows import proposal_of
from services.env_adapter.slots import replace, withdraw
from triforge.algorithms.acceptance import decide, paper_accepts
from triforge.store.tables import MeasurementRow, PoolRow, ProposalRow, TaskRow
from triforge.types import AdaptSettings, Proposal, TaskOutcome

MAX_DISCARDED: Final = 12

Pair = tuple[MeasurementRow, MeasurementRow]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rule says; an empty word asks for another pair."""

    word: Literal["accepted", "rejected", ""]
    reason: str = ""


def weigh(session: Session, row: ProposalRow, outcome: TaskOutcome) -> Proposal | None:
    """Add the pair that this group completes, if it does; the proposal comes back if that brought its verdict."""
    pair = _completed(session, outcome)
    if pair is None:
        return None
    proposal, settings = proposal_of(row), outcome.settings
    lost = not_counted(pair, settings)
    if lost:
        proposal = proposal.model_copy(
            update={"discarded": (*proposal.discarded, f"step {outcome.step}: {lost}")}
        )
        verdict = Verdict("")
        if len(proposal.discarded) > MAX_DISCARDED:
            proposal = _give_up(session, proposal, outcome)
    else:
        proposal = _with(proposal, pair)
        verdict = judge(proposal, settings)
        if verdict.word:
            proposal = _move(session, proposal, verdict, outcome)
    row.document, row.state = proposal.model_dump(mode="json"), proposal.state
    return proposal if proposal.state != "pending" else None


def _completed(session: Session, outcome: TaskOutcome) -> Pair | None:
    """(parent, candidate) of the outcome's round, once both are there."""
    rows = {
        row.purpose: row
        for row in session.scalars(
            select(MeasurementRow).where(
                MeasurementRow.proposal_id == outcome.proposal_id,
                MeasurementRow.run_id == outcome.run_id,
                MeasurementRow.step == outcome.step,
            )
        )
    }
    if set(rows) != {"measure_parent", "measure_candidate"}:
        return None
    return rows["measure_parent"], rows["measure_candidate"]


def not_counted(pair: Pair, settings: AdaptSettings) -> str:
    """Why a pair is played again instead of counted; empty if it counts."""
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


def _with(proposal: Proposal, pair: Pair) -> Proposal:
    parent, candidate = ((group.successes, group.measured) for group in pair)
    return proposal.model_copy(
        update={
            "parent_counts": (*proposal.parent_counts, parent),
            "candidate_counts": (*proposal.candidate_counts, candidate),
        }
    )


def judge(proposal: Proposal, settings: AdaptSettings) -> Verdict:
    """What the run's acceptance rule says of the pairs so far.

    `paper`: the published inequalities on one fresh group of the candidate and the accuracy that asked for the rewrite.
    `confident`: the sequential test of `triforge.algorithms.acceptance`, which never looks at that selected accuracy.
    """
    low, high = settings.algorithm.alpha_low, settings.algorithm.alpha_high
    if settings.algorithm.acceptance == "paper":
        successes, measured = proposal.candidate_counts[0]
        before, after = proposal.trigger_accuracy, successes / measured
        accepted = paper_accepts(proposal.direction, before, after, low, high)
        reason = f"published rule: accuracy {before:.3f} before, {after:.3f} after"
        return Verdict("accepted" if accepted else "rejected", reason)
    decision = decide(
        proposal.direction,
        proposal.parent_counts,
        proposal.candidate_counts,
        low=low,
        high=high,
        alpha=settings.algorithm.acceptance_alpha,
        max_rollouts=settings.adaptation.max_rollouts,
    )
    if decision.verdict == "continue":
        return Verdict("")
    return Verdict("accepted" if decision.verdict == "accept" else "rejected", decision.reason)


def _move(session: Session, proposal: Proposal, verdict: Verdict, outcome: TaskOutcome) -> Proposal:
    """Give the slot its new version, or the candidate its end; one transaction with the measurement that decided."""
    parent = session.get_one(TaskRow, proposal.parent_id)
    candidate = session.get_one(TaskRow, proposal.candidate_id)
    pool = session.get_one(PoolRow, proposal.pool_id)
    state: Literal["accepted", "rejected", "awaiting"] = (
        "accepted" if verdict.word == "accepted" else "rejected"
    )
    reason = verdict.reason
    if proposal.null_control:
        state, reason = "rejected", f"null control, never taken; the test said: {reason}"
    elif state == "accepted":
        capped = over_acceptance(session, proposal, outcome.settings)
        if parent.state != "active":
            state, reason = "rejected", f"the parent became {parent.state} meanwhile; {reason}"
        elif capped:
            state, reason = "rejected", f"{capped}; the test said: {reason}"
        elif pool.approval == "manual":
            state = "awaiting"
    if state == "accepted":
        replace(session, parent, candidate)
    else:
        candidate.state = state
    return proposal.model_copy(
        update={
            "state": state,
            "verdict": verdict.word,
            "reason": _joined(proposal.reason, reason),
            "decided_step": outcome.step,
        }
    )


def _give_up(session: Session, proposal: Proposal, outcome: TaskOutcome) -> Proposal:
    session.get_one(TaskRow, proposal.candidate_id).state = "rejected"
    reason = f"withdrawn: {len(proposal.discarded)} pairs were played and could not be counted"
    return proposal.model_copy(
        update={
            "state": "rejected",
            "reason": _joined(proposal.reason, reason),
            "decided_step": outcome.step,
        }
    )


def settle_foreign(session: Session, pool_id: str, run_id: str, *, adopt: bool) -> None:
    """Take over what other runs have left pending in a pool, or withdraw it.

    Runs of a deployment come one after another, so whoever made it plays no more. The pairs that were counted stay
    valid: each compares parent and candidate under one policy, whichever that was.

    Args:
        session: holds the pool.
        pool_id: of the pool.
        run_id: the run that plans now.
        adopt: whether it goes on with the measurements.
    """
    foreign = (
        ProposalRow.pool_id == pool_id,
        ProposalRow.state == "pending",
        ProposalRow.run_id != run_id,
    )
    if not adopt:
        withdraw(
            session, foreign, f"its run was over before the verdict; run {run_id} makes its own"
        )
        return
    for row in session.scalars(select(ProposalRow).where(*foreign)).all():
        said = _joined(proposal_of(row).reason, f"taken over from run {row.run_id}")
        update = {"run_id": run_id, "reason": said}
        row.run_id = run_id
        row.document = proposal_of(row).model_copy(update=update).model_dump(mode="json")


def _joined(before: str, after: str) -> str:
    return f"{before}; {after}" if before else after
