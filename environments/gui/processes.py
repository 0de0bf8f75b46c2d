"""Programs of an episode: started under a guard process, which ends them with all descendants, also when this process dies."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from triforge.errors import EnvError

_GUARD = Path(__file__).with_name("guard.py")
SPAWNING = threading.Semaphore(2)
"""Held while a process is forked, which keeps the interpreter's lock: with many threads at it the event loop would wait long."""
_STOP_S = 20.0  # killing is quick; a loaded machine may take its time to reap


class GuardedProcess:
    """A program under `guard.py`, with a folder of its own that is removed with it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        before: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="triforge-gui-"))
        try:
            before(self.folder)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        place = str(self.folder)
        environment = {"HOME": place, "TMPDIR": place, "PATH": os.environ.get("PATH", os.defpath)}
        words = [word.replace("{folder}", place) for word in command]
        self._command = words
        with SPAWNING:
            self._guard = subprocess.Popen(  # noqa: S603 (a fixed argument vector, no shell)
                [sys.executable, "-I", "-S", str(_GUARD), place, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._drained = False

    @property
    def alive(self) -> bool:
        return self._guard.poll() is None

    def read_line(self, containing: str, *, timeout_s: float) -> str:
        """Return the first line of the program's output that contains a text; discard later output."""
        output = self._guard.stdout
        assert output is not None
        deadline = time.monotonic() + timeout_s
        held = b""
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                if not selector.select(left):
                    break
                piece = os.read(output.fileno(), 65536)
                if not piece:
                    raise EnvError(f"{self._command[0]} ended at its start: {held[-200:]!r}")
                held += piece
                for line in held.split(b"\n")[:-1]:
                    if containing.encode() in line:
                        self._drained = True
                        threading.Thread(target=_drain, args=(output,), daemon=True).start()
                        return line.decode(errors="replace")
        raise EnvError(
            f"{self._command[0]} did not write {containing!r} within {timeout_s:g} s, but {held[-200:]!r}"
        )

    def stop(self) -> None:
        """End the program with all descendants, and remove its folder. Idempotent."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
        try:
            self._guard.wait(_STOP_S)
        except subprocess.TimeoutExpired:  # a descendant cannot be killed yet
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait(_STOP_S)
        if self._guard.stdout is not None and not self._drained:
            self._guard.stdout.close()


def _drain(output: IO[bytes]) -> None:
    """Read a pipe until its last writer has ended, so that none waits for a full one."""
    with output:
        while output.read(65536):
            pass
