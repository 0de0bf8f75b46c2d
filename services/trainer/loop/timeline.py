"""When each process worked on a step: phases of the orchestrator, learners, episodes and votes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from services.trainer.loop.learners import Trained
from triforge.types import (
    GroupTests,
    JudgedGroup,
    Span,
    SpanKind,
    TrainedRole,
    Trajectory,
    TrajectoryVotes,
)

# In their order. In those that are `wait` the orchestrator does nothing until others are done.
_PHASES: Final[dict[str, SpanKind]] = {
    "play": "wait", "credit": "credit", "train": "wait", "publish": "publish", "adapt": "adapt", "record": "record",
    "evaluate": "wait",
}  # fmt: skip


def spans_of(
    groups: Sequence[JudgedGroup],
    trained: Mapping[TrainedRole, Trained],
    measures: Mapping[str, float],
    ended: float,
) -> list[Span]:
    """The spans of a step whose last phase ended at `ended`. Phases follow one another; a process that said no time has no span."""
    phases = list[Span]()
    end = ended
    for name in reversed(_PHASES):
        start = end - measures.get(f"seconds/{name}", 0.0)
        if start < end:
            phases.insert(0, _span("orchestrator", _PHASES[name], name, start, end))
        end = start
    begun = next((span.start for span in phases if span.name == "train"), ended)
    learners = [
        _span(f"learner of {role}", "train", role, begun, begun + out.seconds)
        for role, out in trained.items()
    ]
    return [*phases, *learners, *chain.from_iterable(map(_of_group, groups))]


def _of_group(group: JudgedGroup) -> Iterator[Span]:
    for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True):
        if trajectory.at:
            yield _work("rollout", "play", trajectory.id, trajectory)
        if votes is not None and votes.at:
            yield _work("judge", "judge", trajectory.id, votes)
    if group.tests is not None and group.tests.at:
        yield _work("judge", "judge", group.tests.group_id, group.tests)


def _work(
    who: str, kind: SpanKind, name: str, work: Trajectory | TrajectoryVotes | GroupTests
) -> Span:
    return _span(f"{who} {work.worker}", kind, name, work.at - work.seconds, work.at)


def _span(lane: str, kind: SpanKind, name: str, start: float, end: float) -> Span:
    return Span(lane=lane, kind=kind, name=name, start=start, end=end)
