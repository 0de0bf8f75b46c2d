"""A suite in its own process, where it may reseed global generators, print, leak or hang without harm to others.

The parent sends lines of JSON, one question at a time. A process that takes too long is killed and started again. The
limit is processor time, so that a busy machine changes no answer. A wall-time limit catches the rest; reaching it is a
failure of the machine and no answer to the question.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triforge.errors import ConfigError, EnvError, InputError

_START_S = 180.0  # a suite of hundreds of modules on a busy machine
_CHUNK = 2**16
_ROOT = Path(__file__).parents[2]
_PASSED = {
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
}  # fmt: skip
_PREFIXES = ("LC_", "PYTHON", "ALFWORLD_")


class TooSlowError(EnvError):
    """The suite used up its processor time on a question; it would do so again."""


def _harmless(environ: Mapping[str, str]) -> dict[str, str]:
    """Select the variables that a suite needs, without our keys and addresses: it is foreign code that reads a model's answers."""
    return {
        name: value
        for name, value in environ.items()
        if name in _PASSED or name.startswith(_PREFIXES)
    }


class Worker:
    """The parent's side, for any number of threads; the suite answers one question at a time.

    Args:
        module: run as `python -m module`; it calls `serve` of `worker_loop`.
        cpu_s: seconds of processor time for one answer.
        wall_s: seconds for one answer on a busy machine; many times `cpu_s` by default.
        python: the interpreter; ours by default, or that of a suite's own virtual environment.
    """

    def __init__(
        self,
        name: str,
        module: str,
        *,
        cpu_s: float = 30.0,
        wall_s: float | None = None,
        python: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._module = module
        self._cpu_s = cpu_s
        self._wall_s = 30.0 + 4.0 * cpu_s if wall_s is None else wall_s
        self._python = python or sys.executable
        self._settings = dict(settings or {})
        if python is not None:  # an interpreter without triforge
            self._settings["PYTHONPATH"] = str(_ROOT)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def call(self, op: str, **arguments: Any) -> Any:
        """Send one question and return the answer."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            question = json.dumps({"op": op, "cpu_s": self._cpu_s, **arguments}) + "\n"
            try:
                process.stdin.write(question.encode())
                process.stdin.flush()
            except OSError:
                raise self._died(op) from None
            reply = self._line(self._wall_s, op)
        if "error" in reply:
            sentence = f"{self._name}: {reply['error']}"
            raise InputError(sentence) if reply.get("input") else EnvError(sentence)
        return reply["answer"]

    def close(self) -> None:
        """End the process. Idempotent; the next call starts another."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        # draws from sets of strings must not depend on the process
        environment = {
            **_harmless(os.environ),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            **self._settings,
        }
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [self._python, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the parent, which ends the suite
        )
        atexit.register(self.close)
        ready = self._line(_START_S, "start")
        if "error" in ready:
            self._end()
            raise ConfigError(f"{self._name}: {ready['error']}")
        return self._process

    def _line(self, within_s: float, op: str) -> dict[str, Any]:
        """Read the next line of the process."""
        assert self._process is not None
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        ready = select.poll()  # select() refuses descriptors above 1023
        ready.register(out, select.POLLIN | select.POLLHUP)
        deadline = time.monotonic() + within_s
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not ready.poll(left * 1000):
                self._end()
                raise EnvError(
                    f"{self._name}: no answer to {op!r} within {within_s:g} s, and the suite's process was ended; the machine "
                    "is too busy: run fewer workers on it"
                )
            part = os.read(out, _CHUNK)
            if not part:
                raise self._died(op)
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, op: str) -> EnvError:
        code = self._end()
        if code == -signal.SIGXCPU:
            return TooSlowError(
                f"{self._name}: {op!r} took more than {self._cpu_s:g} s of processor time; the suite's process was ended"
            )
        return EnvError(f"{self._name}: the suite's process died (exit code {code})")

    def _end(self) -> int | None:
        process, self._process, self._rest = self._process, None, b""
        if process is None:
            return None
        atexit.unregister(self.close)
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                # unwritten data for a process that has ended
                with contextlib.suppress(OSError):
                    pipe.close()
        return process.wait()
