"""The environment families of installed packages, and any other by its path.

A package offers a family with two lines of its pyproject.toml, as ours does:

    [project.entry-points."triforge.environments"]
    guess = "guess_package:FAMILY"

Without a package, `my_module:FAMILY` names a family (`plugins.py`). A family of many environments reads the text after
the colon itself: `gymnasium:FrozenLake-v1`.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from shutil import which
from typing import Final, Protocol, runtime_checkable

from triforge.environments import plugins
from triforge.errors import ConfigError, InputError, install_command
from triforge.rollout.adapting import Levels
from triforge.rollout.protocols import EnvironmentFamily, ProgramFamily

GROUP: Final = "triforge.environments"
_LONGEST: Final = 64  # characters of a stored name


@runtime_checkable
class Named(Protocol):
    """A family of many environments; `name:which` is one of them."""

    def named(self, which: str) -> EnvironmentFamily:
        """Return the family of one of the environments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """The description of a family, its attribute `about`.

    Attributes:
        licence: the licence of the environment: of the family's own code, or of the packages that it needs.
        extra: the extra of its package with its requirements; empty if the package alone is enough.
        needs: modules that must be importable, as far as the extra installs them.
        elsewhere: an environment variable that names another interpreter which has these modules.
        programs: programs that must be on PATH, each with its Debian package.
        steps_per_s: steps for each CPU second of all processes of the family; None if it plays on another machine.
    """

    what: str
    tasks: str
    licence: str
    extra: str = ""
    needs: tuple[str, ...] = ()
    elsewhere: str = ""
    programs: tuple[tuple[str, str], ...] = ()
    papers: str = ""
    steps_per_s: float | None = None


def known() -> tuple[str, ...]:
    """Return the names of all installed families, sorted."""
    return tuple(sorted(entry_points(group=GROUP).names))


@functools.cache
def load(name: str) -> EnvironmentFamily:
    """Return the family of that name or path, also if it cannot be played here.

    Raises:
        InputError: the name is unknown, or the path leads to no family.
        ConfigError: a package or an entry point is broken.
    """
    if len(name) > _LONGEST:
        raise InputError(f"environment {name!r:.100}: expected at most {_LONGEST} characters")
    head, colon, which = name.partition(":")
    found = entry_points(group=GROUP, name=head)
    if not found and colon:
        return _checked(name, plugins.load(name, "environment"), name)
    if not found:
        raise InputError(
            f"environment {name!r} is unknown, known are: {', '.join(known())}; your own has a path, my_module:FAMILY"
        )
    entry: EntryPoint = next(iter(found))
    loaded = _checked(name, _entry(name, entry), entry.value)
    if not colon:
        return loaded
    if not isinstance(loaded, Named):
        raise InputError(
            f"environment {name!r}: {head} is an installed family without names after a colon; rename your own module"
        )
    return loaded.named(which)


def _entry(name: str, entry: EntryPoint) -> object:
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist else "its package"
        extras = f"[{','.join(entry.extras)}]" if entry.extras else ""
        raise ConfigError(
            f"environment {name!r} cannot be loaded from {entry.value!r}: {error}; "
            f"install what it needs (pip install '{package}{extras}') or mend the entry point"
        ) from error


def _checked(name: str, loaded: object, where: str) -> EnvironmentFamily:
    made = loaded() if isinstance(loaded, type) else loaded
    if not isinstance(made, EnvironmentFamily):
        raise ConfigError(
            f"environment {name!r}: {where!r} gives a {type(made).__name__}, not an EnvironmentFamily (docs/environments.md)"
        )
    return made


def family(name: str) -> EnvironmentFamily:
    """Return the family of that name, ready to be played; raise as `load` and `expect_installed` do."""
    loaded = load(name)
    if description := about(loaded):
        expect_installed(name, description)
    return loaded


def about(given: EnvironmentFamily) -> About | None:
    """Return the description of a family, if it has one."""
    description = getattr(given, "about", None)
    return description if isinstance(description, About) else None


def traits(name: str) -> dict[str, bool]:
    """Return the properties of a family in its pools' `PoolState`; none if it cannot be loaded.

    `programs`: programs solve its tasks. `labelled`: its environments label every step (its attribute `labels_steps`).
    `scored`: its episodes have scores, and success only by a run's `success_at`. `levelled`: its tasks have levels.
    """
    try:
        loaded = load(name)
    except (InputError, ConfigError):
        return {}
    return {
        "programs": isinstance(loaded, ProgramFamily),
        "labelled": bool(getattr(loaded, "labels_steps", False)),
        "scored": getattr(loaded, "success_at", 0.0) is None,
        "levelled": isinstance(loaded, Levels),
    }


def expect_installed(name: str, about: About) -> None:
    """Raise a ConfigError with the install command if a package or program of the family is missing."""
    here = not os.environ.get(about.elsewhere)
    missing = [module for module in about.needs if find_spec(module) is None] if here else []
    if missing:
        raise ConfigError(
            f"environment {name!r} needs {', '.join(missing)}, which is not installed: "
            f"{install_command(about.extra)}"
        )
    absent = [(program, package) for program, package in about.programs if which(program) is None]
    if absent:
        raise ConfigError(
            f"environment {name!r} needs {', '.join(n for n, _ in absent)}, not found on PATH: "
            f"apt-get install --no-install-recommends {' '.join(sorted({p for _, p in absent}))}"
        )
