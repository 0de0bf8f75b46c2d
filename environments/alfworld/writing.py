"""Game files in the layout that ALFWorld's own environment reads: one folder a game, a game and a description in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from environments.alfworld.files import GAME
from environments.alfworld.problem import TASK_TYPES, problem
from environments.household.catalogue import LAMP
from environments.household.wording import alfworld_sentence
from environments.household.world import World

SPLIT: Final = "json_2.1.1/train"


def write_game(out: Path, number: int, seed: int, world: World, sources: dict[str, str]) -> Path:
    """Write one game that was proved solvable.

    Args:
        out: what `ALFWORLD_DATA` will name.
        number: of the game; stands where official games name their scene.
        seed: of the games.
        world: the game.
        sources: the engine's `domain` and `grammar`.

    Returns:
        The game file.
    """
    goal, task = world.goal, alfworld_sentence(world)
    lamp = goal.type == "look"
    target = "None" if lamp else goal.target
    name = f"{TASK_TYPES[goal.type]}-{goal.object}-None-{LAMP if lamp else target}-{number}"
    folder = out / SPLIT / name / f"trial_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "task_type": TASK_TYPES[goal.type],
        "pddl_params": {
            "object_target": goal.object,
            "parent_target": "" if lamp else target,
            "toggle_target": LAMP if lamp else "",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": [{"task_desc": task}]},
    }
    (folder / "traj_data.json").write_text(json.dumps(described, indent=1) + "\n")
    game = {
        "pddl_domain": sources["domain"],
        "grammar": sources["grammar"].replace("UNKNOWN GOAL", task),
        "pddl_problem": problem(world),
        "solvable": True,
    }
    path = folder / GAME
    path.write_text(json.dumps(game) + "\n")  # last: a folder without it is no game
    return path
