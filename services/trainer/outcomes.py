"""What adaptation is told of a group: how it went, by which policy versions, and what the critic may read."""

from __future__ import annotations

from services.trainer.measures import critic_notes
from triforge.algorithms.credit import accuracy
from triforge.algorithms.filters import rewrite_direction
from triforge.config import RunConfig
from triforge.rollout.window import Offer
from triforge.types import (
    AdaptSettings,
    CriticNote,
    JudgedGroup,
    LadderSettings,
    RunState,
    TaskOutcome,
)


def task_outcome(
    group: JudgedGroup, offer: Offer, *, run: RunState, config: RunConfig
) -> TaskOutcome:
    """The outcome of a group, before any filter.

    Args:
        group: played and judged.
        offer: its round, and the policy version that it was offered under.
        run: whose group it is.
        config: of the run.
    """
    played, algorithm = group.played, config.algorithm.resolved()
    successes, measured = accuracy([t.outcome.value for t in played.trajectories])
    direction = rewrite_direction(successes, measured, band=algorithm)
    trains = played.group.purpose == "train"
    notes: tuple[CriticNote, ...] = ()
    if direction and trains and config.adaptation.controller != "ladder":
        notes = critic_notes(group, succeeded=direction == "harder", count=config.adaptation.notes)
    oldest, newest = sampled_versions(group, offer.policy)
    return TaskOutcome(
        group_id=played.group.group_id,
        run_id=run.id,
        step=offer.round,
        pool_id=run.pool_id,
        task_id=played.task.id,
        purpose=played.group.purpose,
        proposal_id=played.group.proposal_id,
        successes=successes,
        measured=measured,
        rollouts=played.group.rollouts,
        policy_version=oldest,
        newest_version=newest,
        notes=notes,
        adapt=trains,
        settings=adapt_settings(config),
    )


def sampled_versions(group: JudgedGroup, offered: int) -> tuple[int, int]:
    """The oldest and the newest policy version that sampled a token of the group; `offered` if none did."""
    versions = {
        span.version
        for trajectory in group.played.trajectories
        for segment in trajectory.segments
        for span in segment.versions
    } or {offered}
    return min(versions), max(versions)


def adapt_settings(config: RunConfig) -> AdaptSettings:
    """The options of a run that adaptation needs."""
    adaptation, algorithm = config.adaptation, config.algorithm.resolved()
    gap = adaptation.max_version_gap
    return AdaptSettings(
        controller=adaptation.controller,
        mixed_with=adaptation.mixed_with,
        original_share=adaptation.original_share,
        acceptance=algorithm.acceptance,
        acceptance_alpha=algorithm.acceptance_alpha,
        alpha_low=algorithm.alpha_low,
        alpha_high=algorithm.alpha_high,
        max_rollouts=adaptation.max_rollouts,
        max_version_gap=config.run.staleness_bound if gap is None else gap,
        max_pending=adaptation.max_pending,
        max_proposals=adaptation.max_proposals,
        max_consecutive=adaptation.max_consecutive,
        max_acceptance=adaptation.max_acceptance,
        acceptance_window=adaptation.acceptance_window,
        max_drift=adaptation.max_drift,
        candidates=adaptation.candidates,
        critic_tokens=adaptation.critic_tokens,
        critic_budget=adaptation.critic_budget,
        notes=adaptation.notes,
        deadline_s=adaptation.deadline_s,
        null_control=adaptation.null_control,
        solver_tries=adaptation.solver_tries,
        max_steps=config.env_adapter.max_steps,
        options=config.env_adapter.options,
        sampling=config.models.rewriter.sampling(),
        ladder=LadderSettings.model_validate(adaptation.ladder.model_dump()),
    )
