"""The runner: a small process beside a service that starts sandboxed programs, bounds them and reaps them.

It is started by `Sandbox` in an interpreter of its own and imports nothing but the standard library and this package: a
worker with threads, an event loop and a broker's connections is a bad parent for processes that must be forked,
limited, killed and reaped. The runner has one thread. It is the subreaper of everything it starts, so that the init
process of a dead namespace is reaped by it and not left to whatever runs as PID 1; a run is answered only after every
process of it is gone, and only then its user id is used again. When its service goes away, by whatever death, it kills
what runs and ends; when the runner itself is killed, the kernel kills its sandboxes (bubblewrap's --die-with-parent).

Frames on the socket (its descriptor is the first argument): four bytes of length, then JSON. First the setup; then
requests {"id", "program", "stdin", "limits"} and {"cancel"}, answered by {"id", "result"} or {"id", "error"}. The
setup is answered by {"bounded"}: by what.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from triforge.sandbox.groups import NAME, Group, home, sweep
from triforge.sandbox.kernel import (
    FILTER,
    PROGRAM,
    STDERR,
    STDIN,
    become,
    busy,
    delayed,
    files,
    processes,
    sealed,
    waited,
)
from triforge.sandbox.runs import CHUNK, Run

SLOTS: Final = 64  # user ids of one runner
LOOK_S: Final = 0.1  # between two looks at memory and processor time
FILES: Final = 4096  # in a run's /tmp: each is a kilobyte of the kernel's memory
IDLE_S: Final = 2.0  # between two looks at whether the service still lives
SET_CHILD_SUBREAPER: Final = 36


class Runner:
    """The loop: requests in, processes out, answers back."""

    def __init__(self, service: socket.socket) -> None:
        self._service_socket = service
        self._inbox = bytearray()
        self._service = os.getppid()
        self._command: list[str] = []
        self._environment: dict[str, str] = {}
        self._filter = b""
        self._slots = 1
        self._uids: deque[int] | None = None
        self._home: Path | None = None  # where runs have control groups
        self._groups = 0  # made so far
        self._leaving: list[Group] = []  # of runs that are over
        self._waiting: deque[dict[str, Any]] = deque()
        self._runs: dict[int, Run] = {}
        self._selector = selectors.DefaultSelector()
        self._next_look = 0.0
        self._open = True

    def serve(self) -> None:
        """Until the service is gone and everything is reaped."""
        ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)  # it ends with its service, after the programs
        self._service_socket.setblocking(False)
        self._selector.register(self._service_socket, selectors.EVENT_READ)
        self._selector.register(woken, selectors.EVENT_READ)
        while self._open or self._runs:
            for key, _ in self._selector.select(self._patience()):
                if key.fileobj is self._service_socket:
                    self._hear()
                elif key.fd == woken:
                    os.read(woken, CHUNK)
                elif not key.data.read(key.fd):
                    self._forget(key.data, key.fd)
            self._turn()

    def _turn(self) -> None:
        if self._open and os.getppid() != self._service:
            self._leave()
        now = time.monotonic()
        old = any(run.began and now >= run.began + LOOK_S for run in self._runs.values())
        late = any(not run.cause and now >= run.deadline() for run in self._runs.values())
        if late or (old and now >= self._next_look):
            self._look()
            ended = time.monotonic()
            self._next_look = ended + max(LOOK_S, 9 * (ended - now))  # a tenth of its time at most
        for run in self._runs.values():  # after the look: it may have moved a deadline
            if now >= run.deadline():
                run.kill(run.late())
        self._reap()
        self._leaving = [group for group in self._leaving if not group.removed()]
        while self._waiting and len(self._runs) < self._slots:
            self._start(self._waiting.popleft())

    def _patience(self) -> float:
        if not self._runs:
            return IDLE_S
        soonest = min(run.deadline() for run in self._runs.values())
        return max(0.0, min(LOOK_S, soonest - time.monotonic()))

    # ---- the service -------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        try:
            part = self._service_socket.recv(2**20)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._leave()
            return
        self._inbox += part
        while len(self._inbox) >= 4:
            end = 4 + int.from_bytes(self._inbox[:4], "big")
            if len(self._inbox) < end:
                return
            frame = json.loads(self._inbox[4:end])
            del self._inbox[:end]
            self._take(frame)

    def _take(self, frame: dict[str, Any]) -> None:
        if "command" in frame:
            self._command = frame["command"]
            self._environment = frame["environment"]
            self._filter = base64.b64decode(frame["filter"])
            self._slots = min(frame["concurrency"], SLOTS)
            first = frame["first_uid"]
            if first is not None:
                first += os.getpid() * SLOTS  # no two runners share user ids
                self._uids = deque(range(first, first + SLOTS))
            self._find_home(wanted=frame["groups"])
        elif "cancel" in frame:
            self._cancel(frame["cancel"])
        else:
            self._waiting.append(frame)

    def _find_home(self, *, wanted: bool) -> None:
        if wanted:
            self._home, bounded = home()
        if self._home is None:
            self._say({"bounded": "looks at them"})
            return
        sweep(self._home)
        self._say({"bounded": f"control groups below {self._home}: {bounded}"})

    def _cancel(self, number: int) -> None:
        for request in self._waiting:
            if request["id"] == number:
                self._waiting.remove(request)
                self._say({"id": number, "error": "the caller went away"})
                return
        for run in self._runs.values():
            if run.id == number:
                run.kill("cancelled")

    def _say(self, frame: dict[str, Any]) -> None:
        data = json.dumps(frame).encode()
        self._service_socket.setblocking(True)
        try:
            self._service_socket.sendall(len(data).to_bytes(4, "big") + data)
        except OSError:
            self._leave()
        finally:
            self._service_socket.setblocking(False)

    def _leave(self) -> None:
        if self._open:
            self._open = False
            self._selector.unregister(self._service_socket)
        self._waiting.clear()
        for run in self._runs.values():
            run.kill("cancelled")

    # ---- the programs ------------------------------------------------------------------------------------------

    def _start(self, request: dict[str, Any]) -> None:
        run = Run(request, self._uids.popleft() if self._uids is not None else None)
        ends = {what: os.pipe2(os.O_CLOEXEC) for what in run.held}
        theirs = {what: pair[1] for what, pair in ends.items()}
        theirs[STDIN] = sealed("stdin", request["stdin"].encode("utf-8", "replace"))
        theirs[PROGRAM] = sealed("program", request["program"].encode("utf-8", "replace"))
        theirs[FILTER] = sealed("filter", self._filter)
        try:
            run.group = self._group(run)
            run.monitor = os.fork() if run.group is None else run.group.fork()
            if run.monitor == 0:
                become(self._command, self._environment, theirs, run.uid, run.limits)
        except OSError as error:
            run.gone = run.reaped = True
            run.held[STDERR] += f"cannot fork: {error}".encode()
        finally:
            for fd in theirs.values():
                os.close(fd)
        for what, (ours, _) in ends.items():
            os.set_blocking(ours, False)
            run.pipes[ours] = what
            self._selector.register(ours, selectors.EVENT_READ, run)
        self._runs[run.id] = run
        if run.gone:
            self._end(run)

    def _group(self, run: Run) -> Group | None:
        if self._home is None:
            return None
        self._groups += 1
        return Group(self._home / f"{NAME}-{os.getpid()}-{self._groups}", run.limits)

    def _reap(self) -> None:
        """Reap the dead: the monitors first, then the init of each namespace, which is ours from then on."""
        for run in list(self._runs.values()):
            if not run.reaped:
                run.reaped, run.exit_status, used = waited(run.monitor)
                if run.reaped:
                    run.cpu_s = max(run.cpu_s, used)
                    run.seconds = time.monotonic() - (run.began or run.forked)
                    self._drain(run)
            if run.reaped and not run.gone:
                self._reap_namespace(run)
            if run.gone:
                self._end(run)

    def _reap_namespace(self, run: Run) -> None:
        # it died before it could say; whoever it left behind is found by its parent
        if not run.init:
            kin = [pid for pid, one in processes().items() if one.parent == os.getpid()]
            strangers = set(kin) - {other.monitor for other in self._runs.values()}
            known = {other.init for other in self._runs.values()}
            for pid in strangers - known:
                os.kill(pid, signal.SIGKILL)
                waited(pid)
            run.gone = not strangers - known
            return
        try:
            gone, _, used = waited(run.init)
            if not gone:
                # our child and not reaped: its pid is nobody else's
                os.kill(run.init, signal.SIGKILL)
                return
            run.cpu_s = max(run.cpu_s, used)
        except ChildProcessError:
            pass  # bubblewrap had reaped it
        run.gone = True

    def _drain(self, run: Run) -> None:
        for fd in list(run.pipes):
            before = -1
            while run.pipes.get(fd) is not None and before != len(run.held[run.pipes[fd]]):
                before = len(run.held[run.pipes[fd]])
                if not run.read(fd):
                    self._forget(run, fd)

    def _forget(self, run: Run, fd: int) -> None:
        if run.pipes.pop(fd, None) is not None:
            self._selector.unregister(fd)
            os.close(fd)

    def _end(self, run: Run) -> None:
        self._drain(run)
        for fd in list(run.pipes):
            self._forget(run, fd)
        run.over()
        if run.group is not None and not run.group.removed():
            self._leaving.append(run.group)
        del self._runs[run.id]
        if self._uids is not None and run.uid is not None:
            self._uids.append(run.uid)
        if self._open and run.cause == "again":  # that run will be its result
            self._waiting.append({**run.request, "again": True})
        elif self._open:
            self._say(run.answer())

    def _look(self) -> None:
        """Add up memory, processor time and waiting of every tree; a limit of the kernel's holds for one process only."""
        seen = processes()
        children: dict[int, list[int]] = {}
        for pid, one in seen.items():
            children.setdefault(one.parent, []).append(pid)
        for run in self._runs.values():
            if not run.began or run.reaped or not run.init:
                continue
            tree = [run.init]
            for pid in tree:
                tree += children.get(pid, [])
            found = [seen[pid] for pid in tree if pid in seen]
            memory = sum(one.resident for one in found)
            used = sum(one.cpu_s for one in found)
            if run.group is not None:
                used = max(used, run.group.used())
                memory = 0 if run.group.bounds_memory else memory
            run.looked(time.monotonic(), used, sum(map(delayed, tree)), busy())
            try:
                if memory > run.limits["memory_bytes"] or files(run.init, run.uid) > FILES:
                    run.kill("memory")
                elif used > run.limits["cpu_s"]:
                    run.kill("cpu_time")
            except PermissionError:
                run.kill("uncounted")


def main() -> None:
    """Serve the socket whose descriptor is the last argument."""
    service = socket.socket(fileno=int(sys.argv[-1]))
    service.set_inheritable(False)
    Runner(service).serve()
