"""The environment families: those that installed packages offer, and any other by its path.

A package offers a family with two lines of its pyproject.toml; ours does so, too:

    [project.entry-points."triforge.environments"]
    guess = "guess_package:FAMILY"

Without a package `my_module:FAMILY` names one (`plugins.py`). What stands behind the colon of an installed family's name
is the family's own: `gymnasium:FrozenLake-v1`.
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
_LONGEST: Final = 64  # characters of a name, as it is stored


@runtime_checkable
class Named(Protocol):
    """A family of many environments: `name:which` is one of them."""

    def named(self, which: str) -> EnvironmentFamily:
        """The family of one of the environments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What people ask of a family before they use it: its attribute `about`, if it has one.

    Attributes:
        licence: of what is played: the family's own code, or that of the packages it needs.
        extra: the extra of its package that installs what it needs; empty when the package alone plays it.
        needs: modules that must be importable, as far as the extra brings them.
        elsewhere: an environment variable that names another interpreter which has them instead.
        programs: what must be on PATH, each with the Debian package that brings it.
        steps_per_s: steps a CPU second of everything that the family starts; None where it plays elsewhere.
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
    """The names of all installed families, sorted."""
    return tuple(sorted(entry_points(group=GROUP).names))


@functools.cache
def load(name: str) -> EnvironmentFamily:
    """The family of that name or path, whether or not it can be played here.

    An `InputError` lists the known ones, or says why a path names none; a `ConfigError` says that a package or entry point
    is broken.
    """
    if len(name) > _LONGEST:
        raise InputError(f"environment {name!r:.100}: expected at most {_LONGEST} characters")
    head, colon, which = name.partition(":")
    found = entry_points(group=GROUP, name=head)
    if not found and colon:
        return _checked(name, plugins.load(name, "environment"), name)
    if not found:
        raise InputError(
            f"environment {name!r} is unknown, known are: {', '.join(known())}; one of yours is named by its path, my_module:FAMILY"
        )
    entry: EntryPoint = next(iter(found))
    loaded = _checked(name, _entry(name, entry), entry.value)
    if not colon:
        return loaded
    if not isinstance(loaded, Named):
        raise InputError(
            f"environment {name!r}: {head} is an installed family that takes no name behind a colon; call a module of your own "
            "something else"
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
    """The family of that name, ready to be played; raises as `load` and `expect_installed` do."""
    found = load(name)
    if said := about(found):
        expect_installed(name, said)
    return found


def about(given: EnvironmentFamily) -> About | None:
    """What a family says of itself."""
    said = getattr(given, "about", None)
    return said if isinstance(said, About) else None


def traits(name: str) -> dict[str, bool]:
    """What a `PoolState` says of its family; nothing of one that cannot be loaded.

    `programs`: its tasks are solved by programs. `labelled`: its environments label every step (its attribute `labels_steps`).
    `scored`: its episodes have scores, and no success unless a run states `success_at`. `levelled`: its tasks have levels.
    """
    try:
        found = load(name)
    except (InputError, ConfigError):
        return {}
    return {
        "programs": isinstance(found, ProgramFamily),
        "labelled": bool(getattr(found, "labels_steps", False)),
        "scored": getattr(found, "success_at", 0.0) is None,
        "levelled": isinstance(found, Levels),
    }


def expect_installed(name: str, about: About) -> None:
    """Raise a `ConfigError` that names the command which installs what a family lacks, if it lacks a package or program."""
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
