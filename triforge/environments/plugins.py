"""Code by its path, `module:NAME`: families, reward functions and parts of the arithmetic without an installed package.

The services import the module of a path, so a path runs code: `TRIFORGE_PLUGINS` lists the allowed ones.
"""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import Any, Final, Self

from triforge.config import Settings
from triforge.environments import served
from triforge.errors import EnvError, InputError, raised_at

OPTION: Final = "TRIFORGE_PLUGINS"
_ANY: Final = "any"
_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Allowed:
    """The allowed paths: `any`, or modules (`my_env`, with all names in it) and paths (`my_env:FAMILY`), separated by commas."""

    def __init__(self, listed: str = _ANY) -> None:
        self._listed = {entry.strip() for entry in listed.split(",") if entry.strip()}
        self.unbounded = _ANY in self._listed

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the paths that a deployment lists; without a list, any path if the deployment needs no keys, else none."""
        return cls(settings.plugins or ("" if settings.keyed else _ANY))

    def demand(self, path: str, what: str) -> None:
        """Raise an InputError that names the field `what`, unless the path is allowed."""
        if not (self.unbounded or {path, path.partition(":")[0]} & self._listed):
            raise InputError(
                f"{what}: given {path!r}, expected a path that {OPTION} allows; the operator can list its module there, "
                "and the services then import it"
            )


@functools.cache
def here() -> Allowed:
    """Return the allowed paths of this process's deployment."""
    return Allowed.of(Settings.from_env())


def demand_files(what: str, page: str) -> None:
    """Raise an InputError that names the field `what`, unless families may read files and sockets of the services' machine."""
    if not here().unbounded:
        raise InputError(
            f"{what}: files and sockets of the services' machine are read where {OPTION} is any; upload the tasks, and name a "
            f"function by its module, instead: {page}"
        )


def load(path: str, what: str) -> Any:
    """Import the object of a path from the working directory, PYTHONPATH or an installed package, or find the function of an address.

    Raises:
        InputError: it is no path, it is not allowed, or the import fails; `what` names the field.
    """
    if path.startswith(served.PREFIX):
        demand_files(what, "environments/prompts/README.md")
        try:
            return served.find(path)
        except EnvError as error:
            raise InputError(f"{what}: {error.detail}") from error
    if _PATH.fullmatch(path) is None:
        raise InputError(f"{what}: given {path!r}, expected a path such as my_module:NAME")
    here().demand(path, what)
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        raise InputError(
            f"{what}: {path!r} cannot be imported: {type(error).__name__}: {error}{raised_at(error)}; looked for in {Path.cwd()}, on "
            "PYTHONPATH and among the installed packages: start triforge where the module lies or set PYTHONPATH, and "
            "start it again after a change"
        ) from error
