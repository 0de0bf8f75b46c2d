"""What a judged group says: its votes and tests as numbers, and which weights played and judged it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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


def judge_of(group: JudgedGroup, trajectory: Trajectory) -> dict[int, TrainedRole]:
    """Which model judges each step of a trajectory, by its index."""
    return {step.index: group.played.group.judge(step.agent_id) for step in trajectory.steps}


def judged_by(group: JudgedGroup) -> set[tuple[TrainedRole, int]]:
    """The models and versions that voted on a group, scored it or wrote its tests."""
    tests = group.tests.tests if group.tests else ()
    written = {("reward", span.version) for test in tests for span in test.versions}
    return written.union(*_voted_by(group))


def stale_votes(group: JudgedGroup, oldest: Mapping[TrainedRole, int]) -> tuple[str, ...]:
    """Ids of the trajectories with a vote, or of the tests, that come from an older version than the `oldest` of its model."""

    def stale(found: Iterable[tuple[TrainedRole, int]]) -> bool:
        return any(version < oldest[role] for role, version in found)

    if group.tests is not None:
        return (unit_tests_id(group.tests.group_id),) if stale(judged_by(group)) else ()
    voted = zip(group.played.trajectories, _voted_by(group), strict=True)
    return tuple(trajectory.id for trajectory, found in voted if stale(found))


def _voted_by(group: JudgedGroup) -> Iterator[set[tuple[TrainedRole, int]]]:
    """Of each trajectory."""
    for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True):
        models, found = judge_of(group, trajectory), set[tuple[TrainedRole, int]]()
        for step in votes.steps if votes else ():
            versions = {span.version for vote in step.votes for span in vote.versions}
            versions |= set() if step.score_version is None else {step.score_version}
            found |= {(models[step.step], version) for version in versions}
        yield found
