"""Tasks of the desktop: their parameters, laid out in a home folder before the episode, verified after it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from environments.gui.actions import Action
from environments.gui.episode import ScreenOptions
from environments.gui.evaluators import Getter
from environments.gui.replay import Begun
from environments.gui.rewriting import ScreenTask, Variant
from triforge.environments.kit import Strict
from triforge.errors import InputError

MAX_FILE: Final = 2**20
MAX_ENTRIES: Final = 2000
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ENTER: Final = _READ | os.O_DIRECTORY


def inside_home(path: str) -> PurePosixPath:
    """Return a path below the home folder, or raise an InputError."""
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or "\0" in path or not parts.parts:
        raise InputError(f"desktop: path {path!r} must lead to something below the home folder")
    return parts


def write_file(home: Path, path: str, content: str) -> None:
    """Write a file before the episode, with the folders it lies in."""
    target = home / inside_home(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content, encoding="utf-8")


def read_file(home: Path, path: str) -> str | None:
    """Return the text of a file, None when there is no plain file of at most 1 MiB. Bytes that are not UTF-8 are replaced."""
    descriptor = _open(home, inside_home(path), _READ)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            return None
        return file.read(MAX_FILE).decode("utf-8", "replace")


def names_in(home: Path, path: str = "") -> list[str] | None:
    """Return the names in a folder, sorted, folders with a slash; None when it is no folder. Hidden names are left out."""
    descriptor = _open(home, inside_home(path) if path else PurePosixPath(), _ENTER)
    if descriptor is None:
        return None
    try:
        with os.scandir(descriptor) as entries:
            names = [
                entry.name + "/" * entry.is_dir(follow_symlinks=False)
                for _, entry in zip(range(MAX_ENTRIES), entries, strict=False)
                if not entry.name.startswith(".")
            ]
    finally:
        os.close(descriptor)
    return sorted(name.encode("utf-8", "replace").decode("utf-8") for name in names)


def exists_in(home: Path, path: str) -> bool:
    """Return whether there is anything of that name, even a broken link."""
    parts = inside_home(path)
    descriptor = _open(home, parts.parent, _ENTER)
    if descriptor is None:
        return False
    try:
        os.stat(parts.name, dir_fd=descriptor, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def tree_of(home: Path) -> str:
    """Return files and folders of two levels, one a line."""
    lines = []
    for name in names_in(home) or []:
        lines.append(name)
        if name.endswith("/"):
            lines += [name + below for below in names_in(home, name) or []]
    return "\n".join(lines[:100])


def size_of(home: Path, limit: int) -> int:
    """Return the bytes of all files below, or `limit` as soon as that many, or too many files, are found."""
    total = seen = 0
    folders = [home]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                    if total >= limit or seen > 10 * MAX_ENTRIES:
                        return limit
        except OSError:  # it was removed or closed meanwhile
            continue
    return total


def _open(home: Path, path: PurePosixPath, flags: int) -> int | None:
    """Open name by name, so that no link on the way is followed."""
    folder = os.open(home, _ENTER)
    steps = path.parts
    try:
        for step in steps[:-1]:
            below = os.open(step, _ENTER, dir_fd=folder)
            os.close(folder)
            folder = below
        return os.open(steps[-1] if steps else ".", flags, dir_fd=folder)
    except OSError:
        return None
    finally:
        os.close(folder)


Sort = Literal["create", "write", "rename", "move", "delete", "setting"]
SORTS: tuple[Sort, ...] = ("create", "write", "rename", "move", "delete", "setting")


class SetupStep(Strict):
    """A step of the setup: `write_file` (path, content) or `make_folder` (path), below the home folder."""

    type: Literal["write_file", "make_folder"]
    parameters: dict[str, str]


Solution = Annotated[list[str], Field(default_factory=list, max_length=50)]


class DesktopVariant(Variant):
    """A variant with the commands that solve it."""

    solution: Solution


class DesktopTask(ScreenTask, Begun):
    """The parameters of a task, in OSWorld's shape; the agent does not see the `solution`, commands for the terminal."""

    id: str = Field(default="", max_length=200)
    config: list[SetupStep] = Field(default_factory=list, max_length=200)
    horizon: int = Field(default=15, ge=1, le=200)
    solution: Solution
    variants: Sequence[DesktopVariant] = Field(default=(), max_length=16)

    @property
    def script(self) -> Sequence[str]:
        """The actions of a success: the recorded ones, or the solution entered into the terminal."""
        return self.recorded or [str(Action("type", text=f"{line}\n")) for line in self.solution]


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    sorts: list[Sort] = Field(default_factory=lambda: list(SORTS), min_length=1)
    files: list[int] = Field(default_factory=lambda: [1, 4], min_length=2, max_length=2)
    horizon: int = Field(default=15, ge=1, le=200)
    spare: int = Field(default=2, ge=0, le=3)


class PlayOptions(ScreenOptions):
    """Options of a run; README.md explains each."""

    observe: Literal["screenshot", "files", "both"] = "screenshot"
    width: int = Field(default=640, ge=320, le=1920)
    height: int = Field(default=480, ge=240, le=1080)
    settle_s: float = Field(default=5.0, ge=0.0, le=60.0)
    disk_limit: int = Field(default=50_000_000, ge=1_000_000, le=10**9)


Windows = Callable[[], list[str]]


def lay_out(task: DesktopTask, home: Path) -> None:
    """Carry out the task's `config`."""
    for step in task.config:
        wanted = {"path", "content"} if step.type == "write_file" else {"path"}
        if set(step.parameters) != wanted:
            raise InputError(
                f"desktop params: config: {step.type} takes {', '.join(sorted(wanted))}, given "
                f"{', '.join(sorted(step.parameters)) or 'nothing'}"
            )
        path = step.parameters["path"]
        try:
            if step.type == "write_file":
                write_file(home, path, step.parameters["content"])
            else:
                (home / inside_home(path)).mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise InputError(f"desktop params: config: {path!r} cannot be made: {error}") from error


def getter(home: Path, windows: Windows) -> Getter:
    """Return the reader of an evaluator's values; a `rule` or a `text` is the expected value itself."""

    def folder(path: str) -> JsonValue:
        names = names_in(home, path)
        return None if names is None else [*names]

    find: dict[str, Callable[[str, str], JsonValue]] = {
        "file": lambda path, _: read_file(home, path),
        "exists": lambda path, _: "yes" if exists_in(home, path) else "no",
        "folder": lambda path, _: folder(path),
        "setting": lambda path, name: _setting(read_file(home, path), name),
        "windows": lambda *_: [*windows()],
    }

    def get(spec: Mapping[str, JsonValue]) -> JsonValue:
        kind = str(spec.get("type"))
        if kind in ("rule", "text"):
            return spec.get("rules" if kind == "rule" else "text")
        if kind not in find:
            raise InputError(
                f"desktop params: evaluator: given type {spec.get('type')!r}, expected one of {', '.join(find)}, rule, text"
            )
        return find[kind](str(spec.get("path", "")), str(spec.get("name", "")))

    return get


def expect_open(task: DesktopTask) -> None:
    """Raise an InputError for a task that is solved at reset; it is laid out in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="triforge-desktop-") as folder:
        home = Path(folder)
        lay_out(task, home)
        get = getter(home, lambda: ["Terminal"])
        for specs in (task.evaluator.result, task.evaluator.expected):
            for spec in specs if isinstance(specs, list) else [specs]:
                if spec or not task.evaluator.infeasible:
                    get(spec)  # `score` may stop before some of them
        if task.evaluator.score(get) == 1.0:
            raise InputError("desktop params: evaluator: it holds already at reset")


def _setting(text: str | None, name: str) -> str | None:
    """Return the value of the last line `name=value`."""
    last = None
    for line in (text or "").splitlines():
        key, separator, value = line.partition("=")
        if separator and key.strip() == name:
            last = value.strip()
    return last
