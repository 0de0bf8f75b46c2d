"""A user's game files: where they lie, which there are, and what one says.

`ALFWORLD_DATA` names the folder, as for ALFWorld itself; games are `game.tw-pddl` files anywhere below it, with a
`traj_data.json` beside them in the official data.
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

from environments.alfworld.problem import TASK_TYPES
from triforge.errors import ConfigError, InputError

GAME: Final = "game.tw-pddl"
_FIELDS: Final = ("pddl_domain", "grammar", "pddl_problem")
_TASK: Final = re.compile(r"Your task is to: ([^\"\n\\]+?)\.?\"")
_BY_TYPE: Final = {name: goal for goal, name in TASK_TYPES.items()}


@dataclass(frozen=True, slots=True)
class GameFile:
    """One game file.

    Attributes:
        path: where it lies.
        task: the sentence that it announces.
        sort: the type of its goal in the household's words; empty when nothing beside it says so.
        sha256: of its bytes.
    """

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
    missing = [field for field in _FIELDS if not isinstance(_of(game, field), str)]
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


def _sort(path: Path) -> str:
    try:
        beside: Any = json.loads((path.parent / "traj_data.json").read_text())
    except (OSError, ValueError):
        return ""
    return _BY_TYPE.get(str(_of(beside, "task_type")), "")


def _of(value: Any, field: str) -> Any:
    return value.get(field) if isinstance(value, dict) else None


def _inside(data: Path, name: str) -> Path:
    path = (data / name).resolve()
    if not path.is_relative_to(data.resolve()):
        raise InputError(f"alfworld: {name!r} leads out of the data folder {data}")
    return path


def chosen(names: Sequence[str], goals: Sequence[str]) -> list[str]:
    """The games whose goal is of one of these types; those that say no type are left out."""
    return [name for name in names if read_game(name).sort in goals]
