"""`make conformance`, its part about environments: programs of others against our APIs.

    python -m scripts.openenv_conformance

1. `openenv validate` of openenv-core 0.3.0 against `triforge env serve` of three families: six criteria each.
2. Harbor's own validators read the task folders of configs/pools/harbor; they need Python 3.12 or newer.

Programs of `verifiers` that use our policy and environment endpoints are part of `scripts.agent_conformance`.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.calling import ROOT
from scripts.virtual_environments import CONFORMANCE as HERE
from scripts.virtual_environments import ensure_files
from triforge.errors import TriforgeError, UnavailableError

FAMILIES = ("household", "sokoban", "shop")
CRITERIA = 6


@contextmanager
def served(family: str) -> Iterator[str]:
    """Yield the address of a family behind `triforge env serve`."""
    command = [sys.executable, "-m", "triforge", "env", "serve", family, "--port", "0"]
    with _running([*command, "--count", "8"], cwd=ROOT) as server:
        assert server.stdout is not None
        first_line = server.stdout.readline()
        if " at http://" not in first_line:
            raise UnavailableError(f"triforge env serve {family} did not start: {first_line}")
        yield first_line.rpartition(" at ")[2].strip()


@contextmanager
def _running(command: list[str], *, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # noqa: S603
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def validate(programs: Path, url: str) -> tuple[int, list[str]]:
    """How many criteria a server passes, and which it fails."""
    command = [str(programs / "openenv"), "validate", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    text = done.stdout[done.stdout.find("{") :]
    try:
        summary = json.loads(text)["summary"]
    except (ValueError, KeyError):
        raise UnavailableError(f"openenv validate: {(done.stdout + done.stderr)[-600:]}") from None
    return int(summary["passed_count"]), list(summary["failed_criteria"])


def newer_python() -> str | None:
    """Return a Python that Harbor can be installed for, if there is one here."""
    names = [f"python3.{minor}" for minor in (14, 13, 12)]
    places = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))
    for found in [*map(shutil.which, names), *map(str, places)]:
        asked = [found or "false", "--version"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:  # noqa: S603
            return found
    return None


def harbor() -> bool:
    """Whether Harbor's validators take what is ours; says it. True without a Python for them, which it says, too."""
    python = newer_python()
    if python is None:
        say("harbor: not run, it needs Python 3.12 or newer")
        return True
    files = sorted(map(str, (ROOT / "configs" / "pools" / "harbor").iterdir()))
    command = [str(ensure_files("harbor", python)), str(HERE / "harbor_files.py"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    say((done.stdout + done.stderr[-600:]).rstrip())
    return done.returncode == 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Print what was seen; 1 when a criterion or an episode fails."""
    good = True
    openenv = ensure_files("openenv").parent
    for family in FAMILIES:
        with served(family) as url:
            passed, failed = validate(openenv, url)
        good &= passed == CRITERIA and not failed
        say(f"openenv validate, {family}: {passed} of {CRITERIA} {' '.join(failed)}".rstrip())
    good &= harbor()
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TriforgeError as error:
        sys.exit(f"conformance: {error.detail}")
