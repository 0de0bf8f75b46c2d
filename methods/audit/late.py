"""Labels of people and other systems, which come after the step in which a rollout was played."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel

from methods.audit.labelled import Audited, is_anchor
from services.reward.scorers.votes import score
from services.trainer.loop.hooks import MethodContext
from services.trainer.replay.recorded_groups import groups_of
from services.trainer.runs.labels import KnownLabel, labels_after
from triforge.algorithms.judge_targets.label import draw
from triforge.event_loop import together
from triforge.rollout.episode import judge_task
from triforge.store.step_records import read_step_records, step_record_name
from triforge.types import Trajectory


class _Taken(BaseModel):
    """The labels of a step: those with numbers above `after`, and others of the same rollouts."""

    after: int
    labels: list[KnownLabel]


async def late(run: MethodContext, step: int, anchors: float) -> list[Audited]:
    """Return the rollouts of earlier steps with the labels that came since the last step, each label once.

    A rollout that teaches has its new labels. An anchor has all labels that are known of it, and the votes of the present version of
    the judge, because those that it was played with may be of a much older one.
    """
    found = await asyncio.to_thread(_found, run, step, anchors)
    api = run.parts.apis["reward"]

    async def judged(one: Audited) -> Audited:
        task = judge_task(one.group.played.group, one.trajectory.index)
        votes = await score(one.trajectory, task, api.generate_many)
        return Audited(one.group, one.trajectory, votes, anchor=True)

    measured = await together(judged(one) for one in found if one.anchor)
    return [*(one for one in found if not one.anchor), *measured]


def _found(run: MethodContext, step: int, anchors: float) -> list[Audited]:
    taken = _taken(run, step)
    run.notes["labels"] = max((one.number for one in taken.labels), default=taken.after)
    of_step = defaultdict[int, dict[str, list[KnownLabel]]](lambda: defaultdict(list))
    for one in taken.labels:
        if one.number > taken.after or is_anchor(one.trajectory, anchors):
            of_step[one.played][one.trajectory].append(one)
    return [one for played, own in of_step.items() for one in _rollouts(run, played, own, anchors)]


def _taken(run: MethodContext, step: int) -> _Taken:
    """Return the labels of a step, which are a file: a repeated step takes no others."""
    artifacts, name = run.parts.artifacts, _name(run, step)
    if artifacts.exists(name):
        return _Taken.model_validate_json(artifacts.read(name))
    after = run.notes["labels"]
    taken = _Taken(after=after, labels=labels_after(run.parts.store, run.run_id, after))
    artifacts.write(name, taken.model_dump_json().encode())
    artifacts.delete(_name(run, step - 1))
    return taken


def _name(run: MethodContext, step: int) -> str:
    return f"runs/{run.run_id}/audit/{step:05d}.labels.json"


def _rollouts(
    run: MethodContext, played: int, labels: Mapping[str, Sequence[KnownLabel]], anchors: float
) -> Iterator[Audited]:
    """Yield the judged rollouts of a step that are labelled, from its record."""
    artifacts, name = run.parts.artifacts, step_record_name(run.run_id, played)
    wanted = [("trajectory_id", "in", [*labels])]
    groups = groups_of(read_step_records(artifacts, name, wanted=wanted), run.config)
    for group in groups:
        for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True):
            if votes is not None:
                known = {one.step: one.label for one in labels[trajectory.id]}
                anchor = is_anchor(trajectory.id, anchors)
                audited = anchor and draw(trajectory.id) < run.config.reward.audit_share
                yield Audited(
                    group, _labelled(trajectory, known, own=audited), votes, anchor=anchor
                )


def _labelled(trajectory: Trajectory, labels: Mapping[int, int], *, own: bool) -> Trajectory:
    """Return a rollout with these labels, and with its `own` of other steps or without them."""
    steps = [
        step.model_copy(update={"label": labels.get(step.index, step.label if own else None)})
        for step in trajectory.steps
    ]
    return trajectory.model_copy(update={"steps": tuple(steps)})
