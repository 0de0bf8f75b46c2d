"""Run programs; an error carries the end of their output."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from triforge.errors import UnavailableError

ROOT = Path(__file__).parents[1]
Tell = Callable[[str], None]
_LINES = 25  # of a failed program's last words


def call(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout_s: float = 120.0,
) -> str:
    """Run a program to its end in the repository's root; returns its standard output.

    Raises:
        UnavailableError: it failed or took too long; the sentence ends with its last words.
    """
    done = attempt(command, environment=environment, stdin=stdin, timeout_s=timeout_s)
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES:])
        raise UnavailableError(f"{' '.join(command)}: ended with {done.returncode}:\n{output}")
    return done.stdout


def attempt(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit status.

    Raises:
        UnavailableError: it is not installed or took too long.
    """
    try:
        return subprocess.run(  # noqa: S603 (no shell; the words are ours)
            command, input=stdin, capture_output=True, text=True, check=False, cwd=ROOT,
            timeout=timeout_s, env=None if environment is None else dict(environment),
        )  # fmt: skip
    except FileNotFoundError:
        raise UnavailableError(f"{command[0]}: not installed") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{' '.join(command)}: no end after {timeout_s:.0f} s") from None
