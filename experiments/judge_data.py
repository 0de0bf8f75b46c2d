"""Training data of the judge of the repository: demonstrations, and labelled rollouts as chats in the form of `demo.demonstrations`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from demo.demonstrations import judge_chats
from demo.settings import HORIZON, SHOWN, SPARSE, SupervisedSettings, WarmStart
from environments.household.family import FAMILY
from environments.household.params import PlayOptions, world_of
from triforge.environments.kit import parse_model
from triforge.types import JudgedGroup, Params, Task, Trajectory

JUDGE: Final = WarmStart(
    hidden=128,
    judge_data=replace(
        WarmStart().judge_data,
        count=14_001,
        confuse_rate=(0.0, 0.0, 0.5, 0.5, 1.0),
        reference=True,
        generate=(SPARSE, SPARSE, SHOWN | {"horizon": HORIZON}),
    ),
    judge=SupervisedSettings(learning_rate=1e-3, batch_rows=96, steps=6000),
)


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
