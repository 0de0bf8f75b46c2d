"""`Sandbox`: a service hands in a program and gets its result."""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from triforge.errors import InputError, SandboxError
from triforge.sandbox import filters, jail
from triforge.sandbox.limits import Limits, RunResult

MAX_BYTES: Final = 2**26  # of program and standard input together
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from triforge.sandbox.runner import main; main()"
)
_ROOT: Final = str(Path(__file__).parents[2])
_CLOSE_S: Final = 10.0
_DEFAULT: Final = Limits()
_log = logging.getLogger(__name__)


class Sandbox:
    """Runs programs, several at a time, each alone with its source and its standard input.

    One object serves all threads and event loops of a process. It starts a runner process at the first run, and another
    one if that is lost; runs beyond `concurrency` wait their turn. `close` ends everything that runs.

    As root, every run gets a user id of its own. Otherwise runs have the service's own id: a program that broke out of
    its namespaces would have the service's rights, and a kernel before 5.14 counts the service's own processes against
    the limit; the log says so once.

    Args:
        concurrency: runs at a time, at most 64; one a processor by default.
        groups: whether runs have control groups where they can; looking at them bounds them otherwise.
        with_shell: whether programs find a shell and the machine's other programs, and may write outside /tmp (`jail.command`).
    """

    def __init__(
        self, *, concurrency: int | None = None, groups: bool = True, with_shell: bool = False
    ) -> None:
        self._concurrency = min(64, concurrency or os.cpu_count() or 1)
        self._groups, self._shell = groups, with_shell
        self._lock = threading.Lock()
        self._runner: _Runner | None = None

    async def run(self, program: str, stdin: str = "", limits: Limits = _DEFAULT) -> RunResult:
        """Run a Python program as a script. Cancelling the call kills the program.

        Args:
            program: source text; it is `__main__` and finds only the standard library.

        Raises:
            SandboxError: the sandbox could not start or died; the program has no result.
            InputError: program and input are longer than 64 MiB.
        """
        return await asyncio.wrap_future(self._submit(program, stdin, limits))

    def run_blocking(self, program: str, stdin: str = "", limits: Limits = _DEFAULT) -> RunResult:
        """Run a program for a caller without an event loop; see `run`."""
        return self._submit(program, stdin, limits).result()

    def check(self) -> None:
        """Raise a SandboxError where programs cannot run; it names what to install or to allow."""
        result = self.run_blocking("print(6 * 7)")
        if result.stdout != "42\n":
            raise SandboxError(
                f"a program that prints 42 printed {result.stdout!r}: {result.stderr[-500:]}"
            )

    def close(self) -> None:
        """Kill all runs and wait until they are gone. A later run starts afresh."""
        with self._lock:
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _submit(self, program: str, stdin: str, limits: Limits) -> Future[RunResult]:
        size = len(program) + len(stdin)
        if size > MAX_BYTES:
            raise InputError(
                f"program and standard input: given {size} characters, expected at most {MAX_BYTES}"
            )
        with self._lock:
            if self._runner is None or not self._runner.alive:
                self._runner = _Runner(self._concurrency, self._shell, self._groups)
            runner = self._runner
        request = {"program": program, "stdin": stdin, "limits": asdict(limits)}
        return runner.submit(request)


class _Runner:
    """The service's end of one runner process."""

    def __init__(self, concurrency: int, with_shell: bool, groups: bool) -> None:
        command, uid = jail.command(with_shell=with_shell), jail.first_uid()
        if uid is None:
            _log.warning(
                "not root: programs of a model run under this service's own user id %d, behind namespaces only",
                os.geteuid(),
            )
        setup = {
            "command": command,
            "environment": jail.ENVIRONMENT,
            "filter": base64.b64encode(filters.program(for_shell=with_shell)).decode(),
            "concurrency": concurrency,
            "first_uid": uid,
            "groups": groups,
        }
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and our own file
                [sys.executable, "-I", "-S", "-c", _START, _ROOT, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        # never held while sending, or the reader and the runner could wait for each other
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._pending: dict[int, Future[RunResult]] = {}
        self._next = 0
        self._lost = False
        self._reader = threading.Thread(target=self._read, daemon=True, name="sandbox")
        self._reader.start()
        self._send(setup)

    @property
    def alive(self) -> bool:
        """Whether it takes programs; never in a fork of the process that started it."""
        return not self._lost and self._owner == os.getpid()

    def submit(self, request: dict[str, Any]) -> Future[RunResult]:
        """Hand in a program; its future, when cancelled, kills it."""
        future: Future[RunResult] = Future()
        with self._lock:
            if self._lost:
                raise _lost()
            number = self._next
            self._next += 1
            self._pending[number] = future
        self._send({"id": number, **request})
        future.add_done_callback(lambda done: self._cancelled(number, done))
        return future

    def close(self) -> None:
        """Have it kill its programs, reap them and end."""
        if self._owner != os.getpid():
            self._socket.close()
            return
        with contextlib.suppress(OSError):  # it was lost, and its end is closed already
            self._socket.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _cancelled(self, number: int, done: Future[RunResult]) -> None:
        if done.cancelled():
            with self._lock:
                self._pending.pop(number, None)
            self._send({"cancel": number})

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self._lost = True  # the reader sees the same and fails what is pending

    def _read(self) -> None:
        with self._socket.makefile("rb") as stream, contextlib.suppress(OSError):
            for line in stream:
                if line.endswith(b"\n"):  # else the runner died while it wrote
                    self._receive(json.loads(line))
        self._process.wait()
        with self._lock:
            self._lost = True
            pending, self._pending = list(self._pending.values()), {}
            self._socket.close()
        for future in pending:
            if future.set_running_or_notify_cancel():
                future.set_exception(_lost())

    def _receive(self, message: dict[str, Any]) -> None:
        if "bounded" in message:
            _log.info("programs of a model are bounded by %s", message["bounded"])
            return
        with self._lock:
            future = self._pending.pop(message["id"], None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if "result" in message:
            future.set_result(RunResult(**message["result"]))
        else:
            future.set_exception(_not_started(message["error"]))


def _lost() -> SandboxError:
    return SandboxError("the process that runs the sandboxes was lost; the next run starts another")


def _not_started(why: str) -> SandboxError:
    hint = ""
    if "namespace" in why or "Operation not permitted" in why or "Permission denied" in why:
        hint = (
            "; bubblewrap needs unprivileged user namespaces: sysctl user.max_user_namespaces, and for containers "
            "see docs/operate.md"
        )
    return SandboxError(f"the sandbox did not start: {why}{hint}")


@cache
def shared(*, with_shell: bool = False) -> Sandbox:
    """Return the one sandbox of this process, or the one with a shell; closed when the process ends."""
    sandbox = Sandbox(with_shell=with_shell)
    atexit.register(sandbox.close)
    return sandbox
