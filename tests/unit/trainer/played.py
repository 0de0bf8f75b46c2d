"""Played and judged groups, small enough to check by eye.

Every step of a trajectory has two context tokens (ids 100, 101) and then its response tokens (ids 1, 2, ...), all in
segment 0 unless a step begins a new one. Every sampled token has the log-probability -0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.sections import flat_group
from triforge.types import (
    ErrorInfo,
    GroupTask,
    JudgedGroup,
    Outcome,
    Sampling,
    Segment,
    Step,
    StepVotes,
    Task,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
    VersionSpan,
    Vote,
)

CONTEXT = (100, 101)
LOGPROB = -0.5
PROMPT = (200, 201, 202)
TEXTS = {1: "good", -1: "bad", 0: "banana"}


def group_task(group_id: str = "g", **changes: object) -> GroupTask:
    fields: dict[str, object] = {
        "group_id": group_id,
        "run_id": "run",
        "step": 1,
        "task_id": "task",
        "purpose": "train",
        "rollouts": 2,
        "votes": 2,
        "seed": 5,
        "sampling": Sampling(max_new_tokens=4),
        "max_steps": 5,
        "deadline_s": 20.0,
    }
    return flat_group(**fields | changes)


def task_of(group: GroupTask) -> Task:
    return Task(
        id=group.task_id, pool_id="pool", slot=group.task_id, family="fake", instruction="win"
    )


def trajectory(
    group: GroupTask,
    index: int,
    *,
    outcome: int | None,
    lengths: Sequence[int],
    version: int | None = 1,
    segments: Sequence[int] | None = None,
    labels: Sequence[int | None] | None = None,
) -> Trajectory:
    """One trajectory whose step i has `lengths[i]` response tokens in segment `segments[i]`."""
    parts = segments or [0] * len(lengths)
    ids: dict[int, list[int]] = {part: [] for part in parts}
    spans: dict[int, list[VersionSpan]] = {part: [] for part in parts}
    steps = []
    for i, (length, part) in enumerate(zip(lengths, parts, strict=True)):
        start = len(ids[part]) + len(CONTEXT)
        end = start + length
        ids[part] += [*CONTEXT, *range(1, length + 1)]
        if length and version is not None:
            spans[part].append(VersionSpan(version=version, start=start, end=end))
        steps.append(
            Step(
                index=i, observation=f"o{i}", response=f"r{i}", action=f"a{i}", next_observation=f"o{i + 1}",
                segment=part, start=start, end=end, label=labels[i] if labels else None,
            )
        )  # fmt: skip
    error = ErrorInfo(kind="environment", detail="it broke") if outcome is None else None
    return Trajectory(
        id=f"{group.group_id}-{index:02d}", group_id=group.group_id, index=index, task_id=group.task_id,
        task_version=0, instruction="win", steps=tuple(steps), outcome=Outcome(value=outcome, error=error),
        segments=tuple(
            Segment(
                ids=tuple(ids[part]),
                logprobs=tuple(0.0 if i in CONTEXT else LOGPROB for i in ids[part]),
                versions=tuple(spans[part]),
            )
            for part in sorted(ids)
        ),
    )  # fmt: skip


def votes_on(
    played: Trajectory, values: Sequence[Sequence[int]], *, version: int | None = 1, tokens: int = 2
) -> TrajectoryVotes:
    """`values[i]` are the votes on step i, each of `tokens` tokens."""
    spans = () if version is None else (VersionSpan(version=version, start=0, end=tokens),)
    return TrajectoryVotes(
        trajectory_id=played.id,
        group_id=played.group_id,
        steps=tuple(
            StepVotes(
                step=i,
                prompt_ids=PROMPT,
                votes=tuple(
                    Vote(
                        value=value,
                        text=TEXTS[value],
                        ids=tuple(range(1, tokens + 1)),
                        logprobs=(LOGPROB,) * tokens,
                        versions=spans,
                    )
                    for value in row
                ),
            )
            for i, row in enumerate(values)
        ),
    )


def judged(
    group: GroupTask,
    outcomes: Sequence[int | None],
    values: Sequence[Sequence[Sequence[int]]],
    *,
    version: int = 1,
    judge_version: int = 1,
    length: int = 1,
) -> JudgedGroup:
    """A group of one-segment trajectories; trajectory t has one step an entry of `values[t]`."""
    played = tuple(
        trajectory(group, t, outcome=outcome, lengths=[length] * len(values[t]), version=version)
        for t, outcome in enumerate(outcomes)
    )
    return JudgedGroup(
        played=TrajectoryGroup(group=group, task=task_of(group), trajectories=played),
        votes=tuple(
            votes_on(t, row, version=judge_version) if t.measured else None
            for t, row in zip(played, values, strict=True)
        ),
    )


def labelled(group: JudgedGroup, labels: Sequence[int]) -> JudgedGroup:
    """The same with these labels on the steps of each trajectory."""
    played = tuple(
        t.model_copy(update={"steps": tuple(
            step.model_copy(update={"label": label}) for step, label in zip(t.steps, labels, strict=True)
        )})
        for t in group.played.trajectories
    )  # fmt: skip
    return group.model_copy(
        update={"played": group.played.model_copy(update={"trajectories": played})}
    )


def in_turns(group: JudgedGroup, versions: Mapping[str, int]) -> JudgedGroup:
    """The same as several agents play it, who take the steps in turns: a planner, then those whom the task names.

    Each has a segment of its own, sampled by the version of its model; votes are of the version of the model that judges it.
    """
    task = group.played.group
    agents = ("planner", *task.agents)

    def one(given: Trajectory) -> Trajectory:
        lengths = [s.end - s.start for s in given.steps]
        turns = [n % len(agents) for n in range(len(lengths))]
        made = trajectory(task, given.index, outcome=1, lengths=lengths, segments=turns)
        steps = tuple(
            s.model_copy(update={"agent_id": agents[n]})
            for s, n in zip(made.steps, turns, strict=True)
        )
        segments = tuple(
            segment.model_copy(
                update={
                    "versions": tuple(
                        span.model_copy(update={"version": versions[task.player(agent).model]})
                        for span in segment.versions
                    )
                }
            )
            for agent, segment in zip(agents, made.segments, strict=True)
        )
        return given.model_copy(update={"steps": steps, "segments": segments})

    def cast(votes: StepVotes, step: Step) -> StepVotes:
        version = versions[task.judge(step.agent_id)]
        found = tuple(
            vote.model_copy(
                update={"versions": (VersionSpan(version=version, start=0, end=len(vote.ids)),)}
            )
            for vote in votes.votes
        )
        return votes.model_copy(update={"votes": found})

    played = tuple(map(one, group.played.trajectories))
    found = group.model_copy(
        update={"played": group.played.model_copy(update={"trajectories": played})}
    )
    if not task.judges:
        return found
    votes = tuple(
        row and row.model_copy(update={"steps": tuple(map(cast, row.steps, t.steps))})
        for t, row in zip(played, group.votes, strict=True)
    )
    return found.model_copy(update={"votes": votes})


def scored(group: JudgedGroup, scores: Sequence[float], *, known: bool = True) -> JudgedGroup:
    """The group with scores, and success if it is `known`, or none without a threshold."""
    found = tuple(
        t.model_copy(
            update={"outcome": Outcome(value=t.outcome.value if known else None, score=score)}
        )
        for t, score in zip(group.played.trajectories, scores, strict=True)
    )
    played = group.played.model_copy(update={"trajectories": found})
    return group.model_copy(update={"played": played})


def candidates(group: JudgedGroup) -> JudgedGroup:
    """The group as a tree: step i of trajectory t is candidate t for turn i, and worth t."""
    found = tuple(
        t.model_copy(
            update={
                "steps": tuple(
                    s.model_copy(update={"state": f"{s.index}", "reward": float(t.index)})
                    for s in t.steps
                )
            }
        )
        for t in group.played.trajectories
    )
    return group.model_copy(
        update={"played": group.played.model_copy(update={"trajectories": found})}
    )
