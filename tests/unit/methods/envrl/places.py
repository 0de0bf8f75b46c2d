"""A world of four places that follows rules, and rollouts in it."""

from __future__ import annotations

from methods.envrl.options import EnvRLOptions
from tests.unit.trainer.played import group_task, task_of
from triforge.rendering import Renderer
from triforge.types import (
    ChatMessage,
    ErrorInfo,
    JudgedGroup,
    Outcome,
    Segment,
    Step,
    Trajectory,
    TrajectoryGroup,
)

# What a place looks like, and where its APIs lead: everything that happens in it follows from this.
PLACES = {"fridge": "closed mug", "shelf": "egg", "mug": "empty", "egg": "closed"}
WORDS = [*PLACES, "put", "go", "closed", "empty", "nothing", "1", ">", ";", "?"]


def options(**changes: object) -> EnvRLOptions:
    fields: dict[str, object] = {
        "sp": {"lambda0": 0.2}, "id": {"lambda0": 0.2}, "prompt": "terse",
        "noop_texts": ["nothing"], "max_samples_per_update": 99,
    }  # fmt: skip
    return EnvRLOptions.model_validate(fields | changes)


def played(
    renderer: Renderer | None,
    turns: list[tuple[str, str]],
    last: str,
    *,
    index: int = 0,
    outcome: int | None = -1,
    group: str = "g",
    task: str = "task",
    changes: dict[int, dict[str, object]] | None = None,
) -> Trajectory:
    """A trajectory of (observation, action) turns that ends with `last`, with its ids if a renderer is given."""
    ids: list[int] = []
    steps = []
    for number, (observation, action) in enumerate(turns):
        start = end = 0
        if renderer:
            ids = renderer.extend(ids, [ChatMessage(role="user", content=observation)])
            start = len(ids)
            ids = [*ids, *renderer.encode_text(action), renderer.eos_ids[0]]
            end = len(ids)
        after = turns[number + 1][0] if number + 1 < len(turns) else last
        fields = {
            "index": number, "observation": observation, "response": action, "action": action,
            "next_observation": after, "start": start, "end": end,
        }  # fmt: skip
        steps.append(Step.model_validate(fields | (changes or {}).get(number, {})))
    error = ErrorInfo(kind="environment", detail="broke") if outcome is None else None
    return Trajectory(
        id=f"{group}-{index:02d}", group_id=group, index=index, task_id=task, task_version=0,
        instruction="put mug shelf", steps=tuple(steps), outcome=Outcome(value=outcome, error=error),
        segments=(Segment(ids=tuple(ids), logprobs=(0.0,) * len(ids), versions=()),),
    )  # fmt: skip


def group_of(*trajectories: Trajectory, **changes: object) -> JudgedGroup:
    first = trajectories[0]
    task = group_task(first.group_id, task_id=first.task_id, **changes)
    return JudgedGroup(
        played=TrajectoryGroup(group=task, task=task_of(task), trajectories=trajectories),
        votes=(None,) * len(trajectories),
    )
