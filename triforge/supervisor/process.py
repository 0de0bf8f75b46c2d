"""A child process: started in its own group, its output in a file, restarted when it dies, stopped with its children."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from triforge.retry import RetryPolicy

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: between fork and exec a child must not wait for a lock that another thread held.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_GRACE_S = 15.0  # between SIGTERM and SIGKILL; longer than a worker's soft shutdown
_QUICK_S = 10.0  # a process with a shorter life died at its start
_RESTARTS = RetryPolicy(first_s=0.5, longest_s=30.0, jitter=0.0)


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """A process to start.

    Attributes:
        command: argument vector, without a shell.
        env: variables laid over those of this process.
        ready_url: answers 200 when the process can serve; empty if it has no API.
        tcp_port: open when a process without HTTP can serve; 0 if none.
        folder: made before it starts.
        first: it serves before the next one is started.
        start_s: within this time it has to serve, after what comes before it.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    ready_url: str = ""
    tcp_port: int = 0
    folder: Path | None = None
    first: bool = False
    start_s: float = 180.0


class Process:
    """A running spec."""

    def __init__(
        self, spec: ProcessSpec, log: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.spec = spec
        self.log = log
        self.restarts = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._clock = clock
        self._quick_deaths = 0
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        """The process id while it lives."""
        return self._child.pid if self._child and self._child.poll() is None else None

    def start(self) -> None:
        """Start it; the output goes to the log."""
        for folder in (self.log.parent, self.spec.folder):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._child = subprocess.Popen(  # noqa: S603 (a fixed argument vector, no shell)
                self.spec.command,
                env={**_environment(), **self.spec.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=ENDS_WITH_US,
            )
        self._started_at = self._clock()

    def exit_code(self) -> int | None:
        """Return the exit code if it was started and has ended, else None."""
        return None if self._child is None else self._child.poll()

    def revive(self) -> bool:
        """Restart it if it has died and its pause is over; the pause doubles while it dies at its start."""
        now = self._clock()
        if self.exit_code() is None:
            return False
        if self._not_before == 0.0:
            quick = now - self._started_at < _QUICK_S
            self._quick_deaths = self._quick_deaths + 1 if quick else 0
            self._not_before = now + _RESTARTS.pause_s(self._quick_deaths + 1)
        if now < self._not_before:
            return False
        self._not_before = 0.0
        self.restarts += 1
        self._signal(signal.SIGKILL)  # children that outlive it hold its port, or memory of a card
        self.start()
        return True

    async def stop(self, grace_s: float = _GRACE_S) -> None:
        """Send SIGTERM to its group, and SIGKILL after the grace."""
        child = self._child
        if child is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(child.wait, grace_s)
        self._signal(signal.SIGKILL)
        await asyncio.to_thread(child.wait)
        self._child = None

    def _signal(self, number: int) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _environment() -> dict[str, str]:
    """Return the environment without the key of the person who starts the process."""
    return {name: value for name, value in os.environ.items() if name != "TRIFORGE_KEY"}


def _die_with_parent() -> None:
    """Ask the kernel, in the child, for SIGTERM when the supervisor dies."""
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


ENDS_WITH_US = _die_with_parent if _LIBC else None
"""`preexec_fn` of a child that does not outlive the thread that starts it."""


def run_reporting(
    command: Sequence[str], report: Callable[[str], None], env: Mapping[str, str]
) -> tuple[int, str]:
    """Run a command to its end and report each line of its output; return its exit code and its standard error.

    It does not outlive this process; `env` is laid over the environment.
    """
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(  # noqa: S603 (a fixed argument vector, no shell)
            command, env={**_environment(), **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=errors, text=True, preexec_fn=ENDS_WITH_US,
        ) as child:  # fmt: skip
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    report(line.rstrip())
            except BaseException:
                child.terminate()
                raise
        errors.seek(0)
        return child.returncode, errors.read()
