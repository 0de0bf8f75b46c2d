"""Task folders: read from disk, checked, and laid out for the sandbox, or for a container where the task needs one."""

from __future__ import annotations

import base64
import json
import re
import shlex
import stat
import tomllib
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from posixpath import basename, join, normpath
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from environments.harbor.inside import Entry
from triforge.environments.kit import Strict, parse_model
from triforge.errors import InputError
from triforge.types import Params

MOST_BYTES: Final = 4 * 2**20
RESERVED: Final = frozenset(
    ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "logs", "proc", "run", "sbin", "solution", "sys", "tests",
     "usr", "var")
)  # fmt: skip
"""Folders of the root that are the sandbox's or the verifier's: files that an agent leaves there are ignored."""
HOME: Final = "/root"
_FOLDERS: Final = (("tests", "/tests"), ("solution", "/solution"), ("environment", "."))
_NOT_PLAYED: Final[dict[str, dict[str, JsonValue]]] = {
    "environment": {"os": "linux", "gpus": 0, "tpu": None, "mcp_servers": [], "skills_dir": None, "healthcheck": None},
    "verifier": {"environment_mode": "shared", "environment": None, "collect": []},
}  # fmt: skip
_COMPOSE: Final = re.compile(r"environment/[^/]*compose[^/]*")
_BASES: Final = re.compile(r"(docker\.io/)?(library/)?(debian|ubuntu|python)(:[\w.-]+)?")
_SILENT: Final = ("CMD", "ENTRYPOINT", "LABEL", "EXPOSE", "USER", "MAINTAINER", "SHELL")
_NEEDED: Final = ("task.toml", "instruction.md", "tests/test.sh")


class HarborTask(Strict):
    """A task folder: its files by path, as text, or in base64 where they are not text."""

    name: str = Field(min_length=1, max_length=200)
    files: dict[str, str]
    binary: dict[str, str] = Field(default_factory=dict)
    executable: list[str] = Field(default_factory=list)


class _Section(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    env: dict[str, str] = {}


class _Environment(_Section):
    docker_image: str | None = None
    build_timeout_sec: float = Field(default=600.0, gt=0)
    cpus: float = Field(default=inf, gt=0)
    memory_mb: float = Field(default=inf, gt=0)
    pids: float = Field(default=inf, gt=0)
    workdir: str | None = None


class _Verifier(_Section):
    timeout_sec: float = Field(default=600.0, gt=0)


class Document(BaseModel):
    """The used part of `task.toml`."""

    environment: _Environment = _Environment()
    verifier: _Verifier = _Verifier()
    solution: _Section = _Section()


@dataclass(slots=True)
class Layout:
    """The parts of a task for the sandbox or the container.

    `needs` names the part that needs a container; the image then has the files of `context`, and `tree` is empty.
    """

    instruction: str
    asked: Document
    tests: list[Entry]
    solution: list[Entry]
    context: list[Entry]
    workdir: str = "/"
    needs: str = ""
    env: dict[str, str] = field(default_factory=dict)
    tree: list[Entry] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)  # folders whose files no agent changes


class _NeedsContainerError(Exception):
    """The sandbox cannot give what a task asks for."""


def read_folder(folder: Path) -> Params:
    """Read a task folder as the parameters of a task; an `InputError` if it holds links."""
    files: dict[str, JsonValue] = {}
    binary: dict[str, JsonValue] = {}
    executable: list[JsonValue] = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise InputError(f"harbor {folder.name}: {path} is a link; a task holds files only")
        if not path.is_file():
            continue
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        try:
            files[name] = data.decode()
        except UnicodeDecodeError:
            binary[name] = base64.b64encode(data).decode()
        if path.stat().st_mode & stat.S_IXUSR:
            executable.append(name)
    params: Params = {"name": folder.resolve().name, "files": files}
    return params | {"binary": binary, "executable": executable}


def laid_out(given: HarborTask) -> Layout:
    """Lay out a task for the sandbox or a container; an `InputError` names a missing or unsupported part."""
    files = _files(given)
    if missing := [name for name in _NEEDED if name not in files]:
        raise InputError(f"harbor {given.name}: the folder has no {', '.join(missing)}")
    try:
        document = tomllib.loads(given.files["task.toml"])
    except (KeyError, ValueError) as error:
        raise InputError(f"harbor {given.name}: task.toml: {error}") from None
    plain = json.loads(json.dumps(document, default=str))
    asked = parse_model(Document, plain, "harbor task.toml")
    _expect_played(given.name, plain, asked, files)
    instruction = given.files["instruction.md"].strip()
    tests, solution, context = (_below(files, *pair) for pair in _FOLDERS)
    layout = Layout(instruction, asked, tests, solution, context)
    environment = asked.environment
    try:
        if environment.docker_image and not _BASES.fullmatch(environment.docker_image):
            raise _NeedsContainerError(f"the image {environment.docker_image!r}")
        _follow(given.files.get("environment/Dockerfile", ""), layout)
        layout.workdir = normpath(environment.workdir or layout.workdir)
        _expect_free(layout.workdir)
    except _NeedsContainerError as needs:
        layout.needs, layout.tree, layout.env = str(needs), [], {}
        layout.workdir = environment.workdir or ""
    layout.env |= environment.env
    return layout


def _files(given: HarborTask) -> dict[str, Entry]:
    """Return the files of a task as entries by their path in the folder."""
    entries: dict[str, Entry] = {}
    size = 0
    for name, text in [*given.files.items(), *given.binary.items()]:
        if normpath(name) != name or name.startswith(("/", "..")) or "\0" in name:
            raise InputError(f"harbor {given.name}: {name!r} is no path below the folder")
        try:
            data = base64.b64decode(text, validate=True) if name in given.binary else text.encode()
        except ValueError as error:
            raise InputError(f"harbor {given.name}: {name}: {error}") from None
        size += len(data)
        mode = 0o755 if name in given.executable or name.endswith(".sh") else 0o644
        entries[name] = (name, mode, "f", base64.b64encode(data).decode())
    if size > MOST_BYTES:
        raise InputError(
            f"harbor {given.name}: {size} bytes of files, expected at most {MOST_BYTES}"
        )
    return entries


def _expect_played(name: str, document: Any, asked: Document, files: dict[str, Entry]) -> None:
    """Refuse a task with parts that neither the sandbox nor a container has."""
    unsupported = [
        f"[{section}] {key}"
        for section, keys in _NOT_PLAYED.items()
        for key, same in keys.items()
        if document.get(section, {}).get(key, same) not in (same, None, [], 0)
    ]
    unsupported += ["steps"] if document.get("steps") else []
    unsupported += [path for path in files if path == "trajectory.json" or _COMPOSE.fullmatch(path)]
    if unsupported:
        raise InputError(
            f"harbor {name}: asks for {', '.join(unsupported)}, which this family does not play; see environments/harbor/README.md"
        )
    for section in (asked.environment, asked.verifier, asked.solution):
        if theirs := [key for key, value in section.env.items() if "${" in value]:
            raise InputError(
                f"harbor {name}: task.toml: variable {theirs[0]} is a variable of the host; none is handed to a task"
            )


def _expect_free(path: str) -> None:
    if not path.startswith("/") or path.split("/")[1] in RESERVED:
        raise _NeedsContainerError(f"files in {path}")


def _below(files: dict[str, Entry], folder: str, target: str) -> list[Entry]:
    """Return the files of a folder at another place, or the one file of that name."""
    if folder in files:
        return [(target, *files[folder][1:])]
    prefix = f"{folder}/" if folder != "." else ""
    return [
        (normpath(f"{target}/{path.removeprefix(prefix)}"), *entry[1:])
        for path, entry in files.items()
        if path.startswith(prefix)
    ]


def _follow(dockerfile: str, layout: Layout) -> None:
    """Lay out files and variables as a plain Dockerfile does; all other lines need a container."""
    for line in filter(None, map(str.strip, dockerfile.replace("\\\n", " ").splitlines())):
        word, *rest = _words(line)
        if word == "WORKDIR" and len(rest) == 1:
            layout.workdir = normpath(join(layout.workdir, rest[0]))
        elif word == "ENV" and all("=" in pair for pair in rest):
            layout.env |= dict(pair.split("=", 1) for pair in rest)
        elif word == "COPY" and len(rest) == 2 and (copied := _copied(layout, *rest)):
            for path, *_ in copied:
                _expect_free(path)
            layout.tree += copied
        elif word not in _SILENT and not (word == "FROM" and _BASES.fullmatch(" ".join(rest))):
            raise _NeedsContainerError(f"the line {line[:120]!r} of environment/Dockerfile")


def _words(line: str) -> list[str]:
    """Return the words of an instruction; the whole line for one that is not plain."""
    if line.startswith("#"):
        return ["LABEL"]
    try:
        word, *rest = shlex.split(line)
    except ValueError:
        return [line]
    return [word.upper() if "$" not in line else line, *rest]


def _copied(layout: Layout, source: str, given: str) -> list[Entry]:
    """Return the files of the context that a COPY names, at their target."""
    files, target = (
        {entry[0]: entry for entry in layout.context},
        normpath(join(layout.workdir, given)),
    )
    source = normpath(source).removeprefix("/")
    if source in files and (given.endswith(("/", ".")) or target == layout.workdir):
        target = f"{target}/{basename(source)}"
    return _below(files, source, target)
