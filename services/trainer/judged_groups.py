"""What a judged group says: its votes and tests as numbers, and which weights played and judged it."""

from __future__ import annotations

from triforge.broker import unit_tests_id
from triforge.types import JudgedGroup, StepVotes, TrainedRole, Trajectory, TrajectoryVotes


def vote_values(trajectory: Trajectory, votes: TrajectoryVotes | None) -> list[list[int]]:
    """`[step][vote]` in {-1, 0, +1}; empty where a step was not judged."""
    judged = _judged(trajectory, votes)
    return [[vote.value for vote in step.votes] if step else [] for step in judged]


def step_scores(trajectory: Trajectory, votes: TrajectoryVotes | None) -> list[float | None]:
    """The scores of a source that casts no votes, None where it gave none."""
    return [step.score if step else None for step in _judged(trajectory, votes)]


def privileged_votes(trajectory: Trajectory, votes: TrajectoryVotes | None) -> list[list[int]]:
    """The same of the votes that were cast with a reference solution in sight."""
    return [[*step.privileged] if step else [] for step in _judged(trajectory, votes)]


def _judged(trajectory: Trajectory, votes: TrajectoryVotes | None) -> list[StepVotes | None]:
    by_step = {step.step: step for step in (votes.steps if votes else ())}
    return [by_step.get(step.index) for step in trajectory.steps]


def accepted(group: JudgedGroup) -> list[tuple[bool, ...] | None]:
    """One entry a test: whether it accepts each measured program; None for a test that could not be parsed."""
    given = group.tests.tests if group.tests else ()
    return [None if test.input is None else test.accepts for test in given]


def played_by(group: JudgedGroup, role: TrainedRole = "policy") -> set[int]:
    """The versions of a model that sampled a group."""
    return {
        span.version
        for trajectory in group.played.trajectories
        for segment, model in zip(trajectory.segments, models_of(group, trajectory), strict=True)
        if model == role
        for span in segment.versions
    }


def models_of(group: JudgedGroup, trajectory: Trajectory) -> list[TrainedRole]:
    """Which model sampled each segment of a trajectory."""
    found: list[TrainedRole] = ["policy"] * len(trajectory.segments)
    task = group.played.group
    for step in trajectory.steps if task.agents else ():
        found[step.segment] = task.player(step.agent_id).model
    return found


def judged_by(group: JudgedGroup) -> set[int]:
    """The reward model versions that voted on a group, scored it or wrote its tests."""
    tests = group.tests.tests if group.tests else ()
    written = {span.version for test in tests for span in test.versions}
    return written.union(*map(_voted_by, group.votes))


def stale_votes(group: JudgedGroup, oldest: int) -> tuple[str, ...]:
    """Ids of the trajectories with a vote, or of the tests, that come from a reward model older than `oldest`."""
    if group.tests is not None:
        stale = min(judged_by(group), default=oldest) < oldest
        return (unit_tests_id(group.tests.group_id),) if stale else ()
    return tuple(
        votes.trajectory_id
        for votes in group.votes
        if votes is not None and min(_voted_by(votes), default=oldest) < oldest
    )


def _voted_by(votes: TrajectoryVotes | None) -> set[int]:
    steps = votes.steps if votes else ()
    scored = {step.score_version for step in steps if step.score_version is not None}
    return scored | {
        span.version for step in steps for vote in step.votes for span in vote.versions
    }
