"""Questions about a judged group: its votes as values, and the versions of the models that played and judged it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.samples import Sample
from triforge.broker import group_judgement_id
from triforge.config import RunConfig
from triforge.methods import load_part
from triforge.types import (
    JudgedGroup,
    Player,
    StepVotes,
    TrainedRole,
    Trajectory,
    TrajectoryVotes,
    VersionSpan,
)

UNKNOWN = -1  # the version of a token that no model sampled, or an unknown one


class GroupCredit(Protocol):
    """The credit of groups that a scorer judges as a whole (`triforge.methods.Scorer.credit`)."""

    def score(self, trajectory: Trajectory) -> float | None:
        """Return the score of a trajectory that is compared with others."""

    def rules(self, algorithm: Algorithm) -> Algorithm:
        """Return the algorithm by which responses are credited."""

    def credit(self, texts: Sequence[Sample], group: JudgedGroup, algorithm: Algorithm) -> None:
        """Annotate the texts of the judge."""

    def note(self, group: JudgedGroup, trajectory: Trajectory) -> str:
        """Return what a trajectory passed of the judgement, for the diagnosis; empty for nothing."""


def group_credit(group: JudgedGroup) -> GroupCredit | None:
    """Return the credit of a group that is judged as a whole; None if its steps are judged."""
    path = group.played.group.reward.chosen.credit
    part: GroupCredit | None = load_part(path, "reward.kind") if path else None
    return part


def step_votes(votes: TrajectoryVotes | None) -> dict[int, StepVotes]:
    """Return the votes on a trajectory by step."""
    return {step.step: step for step in (votes.steps if votes else ())}


def vote_values(trajectory: Trajectory, votes: TrajectoryVotes | None) -> list[list[int]]:
    """Return `[step][vote]` in {-1, 0, +1}; empty where a step was not judged."""
    judged = step_votes(votes)
    return [
        [vote.value for vote in judged[step.index].votes] if step.index in judged else []
        for step in trajectory.steps
    ]


def versions_of(spans: Sequence[VersionSpan], length: int) -> list[int]:
    """Return the version of each of `length` tokens."""
    versions = [UNKNOWN] * length
    for span in spans:
        end = min(length, span.end)
        versions[span.start : end] = [span.version] * (end - span.start)
    return versions


def players(config: RunConfig, *, greedy: bool = False) -> dict[str, Player]:
    """Return the models that play agents in the place of the policy."""
    known, agents = config.models.players, config.models.agents
    return {
        agent: Player(model=name, sampling=known[name].sampling(greedy=greedy))
        for agent, name in agents.items()
    }


def judges(config: RunConfig) -> dict[str, Player]:
    """Return the models that judge agents in the place of the reward model."""
    known, judged = config.models.judging, config.models.judges
    return {a: Player(model=name, sampling=known[name].sampling()) for a, name in judged.items()}


def played_by(group: JudgedGroup, role: TrainedRole = "policy") -> set[int]:
    """Return the versions of a model that sampled a group."""
    return {
        span.version
        for trajectory in group.played.trajectories
        for segment, model in zip(trajectory.segments, models_of(group, trajectory), strict=True)
        if model == role
        for span in segment.versions
    }


def models_of(group: JudgedGroup, trajectory: Trajectory) -> list[TrainedRole]:
    """Return the model that sampled each segment of a trajectory."""
    models: list[TrainedRole] = ["policy"] * len(trajectory.segments)
    task = group.played.group
    for step in trajectory.steps if task.agents else ():
        models[step.segment] = task.player(step.agent_id).model
    return models


def judged_by(group: JudgedGroup) -> set[tuple[TrainedRole, int]]:
    """Return the models and versions that voted on a group, scored it or judged it as a whole."""
    texts = group.judgement.texts if group.judgement else ()
    written = {("reward", span.version) for text in texts for span in text.versions}
    return written.union(*_voted_by(group))


def stale_votes(group: JudgedGroup, oldest: Mapping[TrainedRole, int]) -> tuple[str, ...]:
    """Return the ids of trajectories with votes, or of the judgement, by a version older than the `oldest` of its model."""

    def stale(judges: Iterable[tuple[TrainedRole, int]]) -> bool:
        return any(version < oldest[role] for role, version in judges)

    if judgement := group.judgement:
        return (group_judgement_id(judgement.group_id),) if stale(judged_by(group)) else ()
    voted = zip(group.played.trajectories, _voted_by(group), strict=True)
    return tuple(trajectory.id for trajectory, judges in voted if stale(judges))


def _voted_by(group: JudgedGroup) -> Iterator[set[tuple[TrainedRole, int]]]:
    """Yield the models and versions that judged each trajectory."""
    task = group.played.group
    for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True):
        judged, judges = step_votes(votes), set[tuple[TrainedRole, int]]()
        for step in trajectory.steps:
            if own := judged.get(step.index):
                versions = {span.version for vote in own.votes for span in vote.versions}
                versions |= set() if own.score_version is None else {own.score_version}
                judges |= {(task.judge(step.agent_id), version) for version in versions}
        yield judges
