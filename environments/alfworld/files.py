"""Game files below the folder `ALFWORLD_DATA`: `game.tw-pddl`, in the official data with a `traj_data.json`."""

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

from environments.alfworld.pddl import Room, read_room
from environments.household.catalogue import GoalType
from triforge.errors import ConfigError, InputError

GAME: Final = "game.tw-pddl"
SPLIT: Final = "json_2.1.1/train"
TASK_TYPES: Final[dict[GoalType, str]] = {
    "place": "pick_and_place_simple", "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep", "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep", "two": "pick_two_obj_and_place",
}  # fmt: skip
"""ALFWorld's names of the types of goal."""
_FIELDS: Final = ("pddl_domain", "grammar", "pddl_problem")
_TASK: Final = re.compile(r"Your task is to: ([^\"\n\\]+?)\.?\"")
_BY_TYPE: Final = {name: goal for goal, name in TASK_TYPES.items()}


@dataclass(frozen=True, slots=True)
class GameFile:
    """One game file, its sentence, and the type of its goal in the household's words ("" if unknown)."""

    path: Path
    task: str
    sort: str
    sha256: str


def data_folder() -> Path:
    """Return the folder that `ALFWORLD_DATA` names."""
    named = os.environ.get("ALFWORLD_DATA", "")
    if not named:
        raise ConfigError(
            "alfworld: no game files, ALFWORLD_DATA is not set; `alfworld-download` fetches the official ones "
            "(ALFWORLD_DATA=~/.cache/alfworld)"
        )
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"alfworld: ALFWORLD_DATA: given {named!r}, which is not a folder; `ALFWORLD_DATA={named} alfworld-download` makes it"
        )
    return folder


def list_games(under: str, goals: Sequence[GoalType]) -> list[str]:
    """Return every game file below a folder of the data, as paths relative to the data, sorted.

    Of less than all types of goal, files of unknown type are left out.
    """
    data = data_folder()
    folder = _inside(data, under)
    names = sorted(str(path.relative_to(data)) for path in folder.rglob(GAME))
    # ALFWorld's own loader leaves these out: they carry things in things or need slices
    names = [name for name in names if "movable" not in name and "Sliced" not in name]
    if not names:
        raise InputError(
            f"alfworld options: field folder: there is no {GAME} below {folder}; `alfworld-download` fetches the official games"
        )
    if set(goals) == set(TASK_TYPES):
        return names
    return [name for name in names if read_game(name).sort in goals]


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
        raise InputError(f"alfworld params: field file: {path} is marked as unsolvable")
    sentence = _TASK.search(game["grammar"])
    if sentence is None:
        raise InputError(f"alfworld params: field file: {path} announces no task in its grammar")
    return GameFile(path, sentence[1], _sort(path), hashlib.sha256(raw).hexdigest())


@lru_cache(maxsize=64)
def _room(path: Path, sha256: str) -> Room:  # noqa: ARG001  a file that changed is read again
    return read_room(json.loads(path.read_bytes())["pddl_problem"])


def room_of(file: GameFile) -> Room:
    """Return the room of a game file, and its goal."""
    return _room(file.path, file.sha256)


def _sort(path: Path) -> str:
    try:
        described: Any = json.loads((path.parent / "traj_data.json").read_text())
    except (OSError, ValueError):
        return ""
    return _BY_TYPE.get(str(_field_of(described, "task_type")), "")


def _field_of(value: Any, field: str) -> Any:
    return value.get(field) if isinstance(value, dict) else None


def _inside(data: Path, name: str) -> Path:
    path = (data / name).resolve()
    if not path.is_relative_to(data.resolve()):
        raise InputError(f"alfworld: {name!r} leads out of the data folder {data}")
    return path
