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
    """The sections of a run that adaptation reads."""
    gap = config.adaptation.max_version_gap
    return AdaptSettings(
        adaptation=config.adaptation,
        algorithm=config.algorithm.resolved(),
        env_adapter=config.env_adapter,
        sampling=config.models.rewriter.sampling(),
        version_gap=config.run.staleness_bound if gap is None else gap,
    )
