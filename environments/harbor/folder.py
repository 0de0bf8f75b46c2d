"""A task folder: read from disk, checked, and turned into what the sandbox is given. What only a container gives is refused."""

from __future__ import annotations

import base64
import json
import re
import shlex
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import join, normpath
from typing import Final

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
"""Folders of the root that are the sandbox's or the verifier's: no file that an agent leaves there is looked at."""
HOME: Final = "/root"
_BASES: Final = re.compile(r"(docker\.io/)?(library/)?(debian|ubuntu|python)(:[\w.-]+)?")
_SILENT: Final = ("CMD", "ENTRYPOINT", "LABEL", "EXPOSE", "USER", "MAINTAINER", "SHELL")
_NEEDED: Final = ("task.toml", "instruction.md", "tests/test.sh")


class HarborTask(Strict):
    """A task folder: its files by path, as text, or in base64 where they are none."""

    name: str = Field(min_length=1, max_length=200)
    files: dict[str, str]
    binary: dict[str, str] = Field(default_factory=dict)
    executable: list[str] = Field(default_factory=list)


class _Section(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Environment(_Section):
    docker_image: str | None = None
    os: str = "linux"
    memory_mb: int | None = None
    gpus: int | None = None
    tpu: JsonValue = None
    mcp_servers: list[JsonValue] = []
    skills_dir: str | None = None
    healthcheck: JsonValue = None
    workdir: str | None = None
    env: dict[str, str] = {}


class _Verifier(_Section):
    timeout_sec: float = Field(default=600.0, gt=0)
    environment: JsonValue = None
    environment_mode: str | None = None
    collect: list[JsonValue] = []
    env: dict[str, str] = {}


class _Solution(_Section):
    env: dict[str, str] = {}


class _Document(_Section):
    environment: _Environment = _Environment()
    verifier: _Verifier = _Verifier()
    solution: _Solution = _Solution()
    steps: JsonValue = None


@dataclass(slots=True)
class Layout:
    """What of a task the sandbox is given."""

    instruction: str
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    tree: list[Entry] = field(default_factory=list)
    tests: list[Entry] = field(default_factory=list)
    solution: list[Entry] = field(default_factory=list)
    verifier_env: dict[str, str] = field(default_factory=dict)
    solution_env: dict[str, str] = field(default_factory=dict)
    verifier_s: float = 600.0
    memory_mb: int | None = None


def read_folder(folder: Path) -> Params:
    """A task folder as the parameters of a task; an `InputError` if it is none."""
    files: dict[str, JsonValue] = {}
    binary: dict[str, JsonValue] = {}
    executable: list[JsonValue] = []
    size = 0
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise InputError(f"harbor {folder.name}: {path} is a link; a task holds files only")
        if not path.is_file():
            continue
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        size += len(data)
        if size > MOST_BYTES:
            raise InputError(f"harbor {folder.name}: more than {MOST_BYTES} bytes of files")
        try:
            files[name] = data.decode()
        except UnicodeDecodeError:
            binary[name] = base64.b64encode(data).decode()
        if path.stat().st_mode & stat.S_IXUSR:
            executable.append(name)
    params: Params = {"name": folder.resolve().name, "files": files}
    return params | {"binary": binary, "executable": executable}


def laid_out(given: HarborTask) -> Layout:
    """What the sandbox is given of a task; an `InputError` says what it lacks, or what of it needs a container."""
    files = _files(given)
    missing = [name for name in _NEEDED if name not in files]
    if missing:
        raise InputError(f"harbor {given.name}: the folder has no {', '.join(missing)}")
    try:
        document = tomllib.loads(given.files["task.toml"])
    except (KeyError, ValueError) as error:
        raise InputError(f"harbor {given.name}: task.toml: {error}") from None
    asked = parse_model(
        _Document, json.loads(json.dumps(document, default=str)), "harbor task.toml"
    )
    _expect_no_container(given.name, asked, files)
    layout = Layout(
        instruction=given.files["instruction.md"].strip(),
        tests=_below(files, "tests", "/tests"),
        solution=_below(files, "solution", "/solution"),
        verifier_env=_plain(given.name, asked.verifier.env),
        solution_env=_plain(given.name, asked.solution.env),
        verifier_s=asked.verifier.timeout_sec,
        memory_mb=asked.environment.memory_mb,
    )
    if "environment/Dockerfile" in files:
        _Dockerfile(given.name, files, layout).read(given.files["environment/Dockerfile"])
    layout.env |= _plain(given.name, asked.environment.env)
    layout.workdir = normpath(asked.environment.workdir or layout.workdir)
    _expect_free(given.name, layout.workdir)
    return layout


def _files(given: HarborTask) -> dict[str, Entry]:
    """The files of a task as entries by their path in the folder."""
    found: dict[str, Entry] = {}
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
        found[name] = (name, mode, "f", base64.b64encode(data).decode())
    if size > MOST_BYTES:
        raise InputError(
            f"harbor {given.name}: {size} bytes of files, expected at most {MOST_BYTES}"
        )
    return found


def _expect_no_container(name: str, asked: _Document, files: dict[str, Entry]) -> None:
    env, verifier = asked.environment, asked.verifier
    wanted = {
        "steps": asked.steps,
        "trajectory.json": "trajectory.json" in files,
        "[environment] os": env.os.lower() != "linux",
        "[environment] gpus": env.gpus,
        "[environment] tpu": env.tpu,
        "[environment] mcp_servers": env.mcp_servers,
        "[environment] skills_dir": env.skills_dir,
        "[environment] healthcheck": env.healthcheck,
        f"[environment] docker_image = {env.docker_image!r}": env.docker_image
        and not _BASES.fullmatch(env.docker_image),
        "[verifier] environment_mode": verifier.environment_mode not in (None, "shared"),
        "[verifier] environment": verifier.environment,
        "[verifier] collect": verifier.collect,
    }
    wanted |= {path: "compose" in path.rpartition("/")[2] for path in files if _is_top(path)}
    found = [what for what, given in wanted.items() if given]
    if found:
        raise _needs_container(name, ", ".join(found))


def _is_top(path: str) -> bool:
    return path.startswith("environment/") and path.count("/") == 1


def _needs_container(name: str, what: str) -> InputError:
    return InputError(
        f"harbor {name}: needs a container for {what}; this family plays in the sandbox, without containers, and what it "
        "takes stands in environments/harbor/README.md"
    )


def _plain(name: str, env: dict[str, str]) -> dict[str, str]:
    """Variables of a task; those of the host are not handed to it."""
    for key, value in env.items():
        if "${" in value:
            raise InputError(
                f"harbor {name}: task.toml: variable {key} is {value!r}, a variable of the host; none is handed to a task"
            )
    return env


def _expect_free(name: str, path: str) -> None:
    if not path.startswith("/") or path.split("/")[1] in RESERVED:
        raise _needs_container(name, f"files in {path}")


def _below(files: dict[str, Entry], folder: str, target: str) -> list[Entry]:
    """The files of a folder at another place, or the one file of that name."""
    if folder in files:
        return [(target, *files[folder][1:])]
    prefix = f"{folder}/" if folder != "." else ""
    return [
        (normpath(f"{target}/{path.removeprefix(prefix)}"), *entry[1:])
        for path, entry in files.items()
        if path.startswith(prefix)
    ]


class _Dockerfile:
    """Follows a Dockerfile as far as it lays out files and variables."""

    def __init__(self, name: str, files: dict[str, Entry], layout: Layout) -> None:
        self._name, self._layout = name, layout
        self._files = {
            path.removeprefix("environment/"): entry
            for path, entry in files.items()
            if path.startswith("environment/")
        }

    def read(self, text: str) -> None:
        for line in _lines(text):
            word, _, rest = line.partition(" ")
            word, rest = word.upper(), rest.strip()
            if word == "FROM" and _BASES.fullmatch(rest):
                continue
            if word == "WORKDIR":
                self._layout.workdir = normpath(join(self._layout.workdir, rest.strip("\"'")))
            elif word == "ENV":
                self._set(line, rest)
            elif word in ("COPY", "ADD"):
                self._copy(line, rest)
            elif word not in _SILENT:
                raise _needs_container(
                    self._name, f"the line {line[:120]!r} of environment/Dockerfile"
                )

    def _set(self, line: str, rest: str) -> None:
        words = _words(self._name, line, rest)
        if words and "=" not in words[0]:
            words = [f"{words[0]}={' '.join(words[1:])}"]
        for word in words:
            key, _, value = word.partition("=")
            if "$" in value:
                raise _needs_container(
                    self._name, f"the line {line[:120]!r} of environment/Dockerfile"
                )
            self._layout.env[key] = value

    def _copy(self, line: str, rest: str) -> None:
        words = json.loads(rest) if rest.startswith("[") else _words(self._name, line, rest)
        while words and words[0].startswith(("--chown=", "--chmod=")):
            del words[0]
        if len(words) < 2 or words[0].startswith("--"):
            raise _needs_container(self._name, f"the line {line[:120]!r} of environment/Dockerfile")
        *sources, given = words
        target = normpath(join(self._layout.workdir, given))
        into = (
            given.endswith("/")
            or given == "."
            or target == self._layout.workdir
            or len(sources) > 1
        )
        for source in map(normpath, sources):
            plain = source.removeprefix("/")
            is_file = plain in self._files
            place = f"{target}/{plain.rpartition('/')[2]}" if is_file and into else target
            found = _below(self._files, plain or ".", normpath(place))
            if not found:
                raise InputError(
                    f"harbor {self._name}: environment/Dockerfile copies {source!r}, and there is no such file in environment/"
                )
            for path, *_ in found:
                _expect_free(self._name, path)
            self._layout.tree += found


def _words(name: str, line: str, rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError as error:
        raise InputError(
            f"harbor {name}: environment/Dockerfile: {line[:120]!r}: {error}"
        ) from None


def _lines(text: str) -> Iterator[str]:
    """The instructions of a Dockerfile, continued lines joined."""
    held = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1].strip() + " "
            continue
        yield (held + line.strip()).strip()
        held = ""
    if held:
        yield held.strip()
