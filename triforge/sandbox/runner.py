"""The runner: a process with one thread that starts sandboxed programs, bounds them and reaps them.

`Sandbox` starts it in an interpreter of its own, which imports the standard library and this package only: a worker with
threads and connections to a broker is a bad parent for processes that must be forked, limited, killed and reaped. The runner is
the subreaper of all that it starts. It answers a request, and uses its user id again, when every process of the run is reaped.
When the service closes its end of the socket or dies, the runner kills its programs and ends; when the runner itself is killed,
the kernel kills its programs (bubblewrap's --die-with-parent).

Messages are lines of JSON on the socket whose descriptor is the last argument: first the setup, then requests
{"id", "program", "stdin", "limits"} and {"cancel"}. The runner sends {"bounded"} once, then {"id", "result"} or {"id", "error"}.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
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
from triforge.sandbox.runs import Run

SLOTS: Final = 64  # user ids of one runner
BLOCKS: Final = 2**22  # of such ids, as many as Linux has process ids
SPREAD: Final = 2_654_435_761  # odd, so that containers that were started together are far apart
LOOK_S: Final = 0.1  # between two looks at memory and processor time
FILES: Final = 4096  # in a run's /tmp: each is a kilobyte of the kernel's memory
IDLE_S: Final = 2.0  # between two looks at whether the service still lives
LONGEST: Final = 2**30  # bytes of a message
SET_CHILD_SUBREAPER: Final = 36

Message = dict[str, Any]


class Runner:
    """Requests in, processes out, responses back. An unexpected error in one of its `tasks` ends the process."""

    def __init__(
        self, setup: Message, send: Callable[[Message], None], tasks: asyncio.TaskGroup
    ) -> None:
        self._setup, self._send, self._group = setup, send, tasks
        self._filter = base64.b64decode(setup["filter"])
        self._slots = asyncio.Semaphore(min(setup["concurrency"], SLOTS))
        first = setup["first_uid"]
        self._uids: deque[int | None] = deque([None] * SLOTS)
        if first is not None:
            self._uids = deque(own_ids(first))
        self._home, bounded = home() if setup["groups"] else (None, "")
        self._groups = 0  # made so far
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._runs: dict[int, Run] = {}
        self._next_look = 0.0
        if self._home is not None:
            sweep(self._home)
            bounded = f"control groups below {self._home}: {bounded}"
        send({"bounded": bounded or "looks at them"})

    def take(self, message: Message) -> None:
        """Start a request, or cancel one."""
        if "cancel" in message:
            self._cancel(message["cancel"])
            return
        task = self._group.create_task(self._serve(message))
        self._tasks[message["id"]] = task
        task.add_done_callback(lambda _: self._tasks.pop(message["id"]))

    def close(self) -> None:
        """Kill every run."""
        for number in list(self._tasks):
            self._cancel(number)

    def _cancel(self, number: int) -> None:
        if run := self._runs.get(number):
            run.kill("cancelled")
        elif task := self._tasks.get(number):  # it waits for a slot
            task.cancel()

    async def _serve(self, request: Message) -> None:
        async with self._slots:
            run = Run(request, self._uids.popleft())
            await self._play(run, request)
            self._uids.append(run.uid)
        self._send(run.response())
        while run.group is not None and not run.group.removed():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _play(self, run: Run, request: Message) -> None:
        self._runs[run.id] = run
        try:
            self._start(run, request)
            over = asyncio.create_task(_ended(run.monitor))
            while not over.done():
                pause = min(LOOK_S, run.deadline() - time.monotonic())
                await asyncio.wait({over}, timeout=None if run.cause else max(0.0, pause))
                if not over.done():
                    self._bound(run)
            over.result()  # raises where the kernel has no pidfd (before Linux 5.3)
            await self._reap(run)
        except OSError as error:
            if run.monitor and not run.reaped:
                os.kill(run.monitor, signal.SIGKILL)
                os.waitpid(run.monitor, 0)  # noqa: ASYNC222  it ends at once
            run.reaped = True
            run.held[STDERR] += f"cannot start a process: {error}".encode()
        finally:
            for fd in list(run.pipes):
                run.read(fd)
                self._close(run, fd)
            if run.group is not None:
                run.cpu_s = max(run.cpu_s, run.group.used())
                if run.group.out_of_memory():
                    run.cause = run.cause or "memory"
            del self._runs[run.id]

    def _start(self, run: Run, request: Message) -> None:
        ends = {stream: os.pipe2(os.O_CLOEXEC) for stream in run.held}
        theirs = {stream: pair[1] for stream, pair in ends.items()}
        for stream, (ours, _) in ends.items():
            os.set_blocking(ours, False)
            run.pipes[ours] = stream
        theirs[STDIN] = sealed("stdin", request["stdin"].encode("utf-8", "replace"))
        theirs[PROGRAM] = sealed("program", request["program"].encode("utf-8", "replace"))
        theirs[FILTER] = sealed("filter", self._filter)
        try:
            if self._home is not None:
                self._groups += 1
                folder = self._home / f"{NAME}-{os.getpid()}-{self._groups}"
                run.group = Group(folder, run.limits)
            run.monitor = os.fork() if run.group is None else run.group.fork()
            if run.monitor == 0:
                command, environment = self._setup["command"], self._setup["environment"]
                become(command, environment, theirs, run.uid, run.limits)
        finally:
            for fd in theirs.values():
                os.close(fd)
        for fd in run.pipes:
            asyncio.get_running_loop().add_reader(fd, self._read, run, fd)

    def _read(self, run: Run, fd: int) -> None:
        if not run.read(fd):
            self._close(run, fd)

    def _close(self, run: Run, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        del run.pipes[fd]
        os.close(fd)

    async def _reap(self, run: Run) -> None:
        """Reap the monitor, then the init of its namespace, which is our child from then on; all others go with it."""
        _, run.exit_status, used = waited(run.monitor)
        run.reaped, run.cpu_s = True, max(run.cpu_s, used)
        run.seconds = time.monotonic() - (run.began or run.forked)
        for fd in run.pipes:
            run.read(fd)  # bubblewrap's report among them
        for pid in [run.init] if run.init else self._orphans():
            with suppress(ChildProcessError, ProcessLookupError):  # bubblewrap has reaped it
                reaped, _, used = waited(pid)
                if not reaped:  # it is our child: its pid is not reused
                    os.kill(pid, signal.SIGKILL)
                    await _ended(pid)
                    _, _, used = waited(pid)
                run.cpu_s = max(run.cpu_s, used)

    def _orphans(self) -> list[int]:
        """Return our children that belong to no known run: an init whose monitor died before its report."""
        children = {pid for pid, one in processes().items() if one.parent == os.getpid()}
        known = {pid for run in self._runs.values() for pid in (run.monitor, run.init)}
        return list(children - known)

    def _bound(self, run: Run) -> None:
        """Kill a run at its deadline, and look at all runs from time to time; a look may move a deadline."""
        now = time.monotonic()
        late = not run.cause and now >= run.deadline()
        if late or (run.began and now >= max(run.began + LOOK_S, self._next_look)):
            self._look()
            ended = time.monotonic()
            self._next_look = ended + max(LOOK_S, 9 * (ended - now))  # a tenth of its time at most
        if now >= run.deadline():
            run.kill(run.late())

    def _look(self) -> None:
        """Add up memory, processor time and waiting of every process tree; a limit of the kernel's holds for one process only."""
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
            living = [seen[pid] for pid in tree if pid in seen]
            memory = sum(one.resident for one in living)
            used = sum(one.cpu_s for one in living)
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


def own_ids(first: int) -> range:
    """Return the user ids of this runner, from `first` on.

    The kernel counts the processes of a user id over all containers, whose runners may have equal process ids.
    """
    namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
    block = (os.getpid() + SPREAD * namespace) % BLOCKS
    return range(first + block * SLOTS, first + (block + 1) * SLOTS)


async def _ended(pid: int) -> None:
    """Wait until a child has ended; it stays to be reaped."""
    loop, fd = asyncio.get_running_loop(), os.pidfd_open(pid)
    over = asyncio.Event()
    loop.add_reader(fd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def _leave_with(service: int) -> None:
    """End this process when the service is gone: a fork of it may keep the socket open."""
    while os.getppid() == service:  # noqa: ASYNC110
        await asyncio.sleep(IDLE_S)
    os._exit(1)


async def serve(connection: socket.socket, service: int) -> None:
    """Serve requests until the service closes its end and every run is reaped."""
    watch = asyncio.create_task(_leave_with(service))
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LONGEST)

    def send(message: Message) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    async with asyncio.TaskGroup() as tasks:
        runner = None
        with suppress(ConnectionError):
            while line := await reader.readline():
                message = json.loads(line)
                if runner is None:
                    runner = Runner(message, send, tasks)
                else:
                    runner.take(message)
        if runner is not None:
            runner.close()
    watch.cancel()


def main() -> None:
    """Serve the socket whose descriptor is the last argument."""
    service = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # it ends with its service, after the programs
    connection = socket.socket(fileno=int(sys.argv[-1]))
    connection.set_inheritable(False)
    asyncio.run(serve(connection, service))
