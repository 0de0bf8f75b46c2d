"""Tasks of the desktop: laid out before the episode, verified after it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import JsonValue

from environments.desktop import home as homes
from environments.desktop.options import DesktopTask
from environments.gui.evaluators import Getter
from triforge.errors import InputError

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
                homes.write(home, path, step.parameters["content"])
            else:
                (home / homes.inside(path)).mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise InputError(f"desktop params: config: {path!r} cannot be made: {error}") from error


def getter(home: Path, windows: Windows) -> Getter:
    """Finds what an evaluator asks for: `file`, `exists`, `folder`, `setting`, `windows`, and for `expected` a `rule` or a `text`."""

    def get(spec: Mapping[str, JsonValue]) -> JsonValue:
        kind = spec.get("type")
        path = str(spec.get("path", ""))
        if kind == "rule":
            return spec.get("rules")
        if kind == "text":
            return spec.get("text")
        if kind == "windows":
            return [*windows()]
        if kind == "file":
            return homes.read(home, path)
        if kind == "exists":
            return "yes" if homes.exists(home, path) else "no"
        if kind == "folder":
            names = homes.names(home, path)
            return None if names is None else [*names]
        if kind == "setting":
            return _setting(homes.read(home, path), str(spec.get("name", "")))
        raise InputError(
            f"desktop params: evaluator: unknown type {kind!r}, known are file, exists, folder, setting, windows, rule, text"
        )

    return get


def expect_open(task: DesktopTask) -> None:
    """A task must not be solved before it begins; tried in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="triforge-desktop-") as folder:
        home = Path(folder)
        lay_out(task, home)
        get = getter(home, lambda: ["Terminal"])
        for specs in (task.evaluator.result, task.evaluator.expected):
            for spec in specs if isinstance(specs, list) else [specs]:
                if spec or not task.evaluator.infeasible:
                    get(spec)  # `score` need not come to each of them
        if task.evaluator.score(get) == 1.0:
            raise InputError("desktop params: evaluator: it holds already at reset")


def _setting(text: str | None, name: str) -> str | None:
    """The value of the last line `name=value`."""
    found = None
    for line in (text or "").splitlines():
        key, separator, value = line.partition("=")
        if separator and key.strip() == name:
            found = value.strip()
    return found


__all__ = ["expect_open", "getter", "lay_out"]
