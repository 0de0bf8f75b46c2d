"""Game files: a user's, which lie anywhere below the folder `ALFWORLD_DATA`, and those that we write in the same layout.

Games are `game.tw-pddl` files, with a `traj_data.json` beside them in the official data.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from environments.alfworld.games import TASK_TYPES, problem
from environments.alfworld.pddl import Room, read_room
from environments.household.wording import announce
from environments.household.world import World
from triforge.errors import ConfigError, InputError

GAME: Final = "game.tw-pddl"
_FIELDS: Final = ("pddl_domain", "grammar", "pddl_problem")
_TASK: Final = re.compile(r"Your task is to: ([^\"\n\\]+?)\.?\"")
_BY_TYPE: Final = {name: goal for goal, name in TASK_TYPES.items()}


@dataclass(frozen=True, slots=True)
class GameFile:
    """One game file, its task's sentence, and the type of its goal in the household's words ("" when nothing says so)."""

    path: Path
    task: str
    sort: str
    sha256: str


def data_folder() -> Path:
    """The folder that `ALFWORLD_DATA` names."""
    named = os.environ.get("ALFWORLD_DATA", "")
    if not named:
        raise ConfigError(
            "alfworld: no game files, ALFWORLD_DATA is not set; `alfworld-download` fetches the official ones "
            "(ALFWORLD_DATA=~/.cache/alfworld), `python -m environments.alfworld --out DIR` makes others"
        )
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"alfworld: ALFWORLD_DATA is {named!r}, which is not a folder; `ALFWORLD_DATA={named} alfworld-download` makes it"
        )
    return folder


def list_games(under: str) -> list[str]:
    """Every game file below a folder of the data, as paths relative to the data, sorted."""
    data = data_folder()
    folder = _inside(data, under)
    found = sorted(str(path.relative_to(data)) for path in folder.rglob(GAME))
    # ALFWorld's own loader leaves these out: they carry things in things or need slices
    found = [path for path in found if "movable" not in path and "Sliced" not in path]
    if not found:
        raise InputError(
            f"alfworld options: field folder: there is no {GAME} below {folder}; `alfworld-download` fetches the official games"
        )
    return found


def read_game(name: str) -> GameFile:
    """Read and check a game file."""
    path = _inside(data_folder(), name)
    try:
        stamp = path.stat()
    except OSError:
        raise InputError(f"alfworld params: field file: there is no {path}") from None
    return _read(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=4096)
def _read(path: Path, changed_ns: int, size: int) -> GameFile:  # noqa: ARG001  a file that changed is read again
    raw = path.read_bytes()
    try:
        game: Any = json.loads(raw)
    except ValueError as error:
        raise InputError(f"alfworld params: field file: {path} is not JSON ({error})") from None
    missing = [field for field in _FIELDS if not isinstance(_field_of(game, field), str)]
    if missing:
        raise InputError(
            f"alfworld params: field file: {path} has no {', '.join(missing)}; expected a game as `alfworld-generate` writes it"
        )
    if game.get("solvable") is False:
        raise InputError(f"alfworld params: field file: {path} says itself that it is unsolvable")
    found = _TASK.search(game["grammar"])
    if found is None:
        raise InputError(f"alfworld params: field file: {path} announces no task in its grammar")
    return GameFile(path, found[1], _sort(path), hashlib.sha256(raw).hexdigest())


@lru_cache(maxsize=64)
def _room(path: Path, sha256: str) -> Room:  # noqa: ARG001  a file that changed is read again
    return read_room(json.loads(path.read_bytes())["pddl_problem"])


def room_of(file: GameFile) -> Room:
    """The room of a game file, and its goal."""
    return _room(file.path, file.sha256)


def _sort(path: Path) -> str:
    try:
        beside: Any = json.loads((path.parent / "traj_data.json").read_text())
    except (OSError, ValueError):
        return ""
    return _BY_TYPE.get(str(_field_of(beside, "task_type")), "")


def _field_of(value: Any, field: str) -> Any:
    return value.get(field) if isinstance(value, dict) else None


def _inside(data: Path, name: str) -> Path:
    path = (data / name).resolve()
    if not path.is_relative_to(data.resolve()):
        raise InputError(f"alfworld: {name!r} leads out of the data folder {data}")
    return path


def chosen(names: Sequence[str], goals: Sequence[str]) -> list[str]:
    """The games whose goal is of one of these types; those that say no type are left out."""
    return [name for name in names if read_game(name).sort in goals]


SPLIT: Final = "json_2.1.1/train"


def write_game(out: Path, number: int, seed: int, world: World, sources: dict[str, str]) -> Path:
    """Write one game that was proved solvable, below `out`, which `ALFWORLD_DATA` will name; returns the game file.

    `number` stands where official games name their scene; `sources` are the engine's `domain` and `grammar`.
    """
    goal, task = world.goal, announce(world)
    lamp = goal.type == "look"
    name = f"{TASK_TYPES[goal.type]}-{goal.object}-None-{goal.target}-{number}"
    folder = out / SPLIT / name / f"trial_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "task_type": TASK_TYPES[goal.type],
        "pddl_params": {
            "object_target": goal.object,
            "parent_target": "" if lamp else goal.target,
            "toggle_target": goal.target if lamp else "",
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
