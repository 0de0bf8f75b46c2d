"""Labelled rollouts as chats that a judge is trained on, in the form of `demo.demonstrations`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from demo.demonstrations import judge_chats
from environments.household.family import FAMILY
from environments.household.params import PlayOptions, world_of
from triforge.environments.kit import parse_model
from triforge.types import JudgedGroup, Params, Task, Trajectory


def add_labelled(
    path: Path, groups: Iterable[JudgedGroup], task: Callable[[str], Task], options: Params
) -> None:
    """Append a chat for each step of the groups' rollouts whose steps are all labelled; the judge sees a solution of the task.

    Args:
        task: by its id.
        options: of the household's play.
    """
    play = parse_model(PlayOptions, options, "household options")
    with path.open("a", encoding="utf-8") as file:
        for group in groups:
            for trajectory in group.played.trajectories:
                if trajectory.steps and all(step.label for step in trajectory.steps):
                    file.writelines(_lines(trajectory, task(trajectory.task_id), play))


def _lines(trajectory: Trajectory, task: Task, play: PlayOptions) -> Iterable[str]:
    solution = FAMILY.solution(world_of(task.params), play) or ()
    shown = {
        "instruction": trajectory.instruction,
        "system": trajectory.system,
        "steps": [step.model_dump() for step in trajectory.steps],
        "reference": "\n".join(solution),
    }
    for chat in judge_chats(shown):
        yield json.dumps({"messages": chat, "group": trajectory.id}, ensure_ascii=False) + "\n"
