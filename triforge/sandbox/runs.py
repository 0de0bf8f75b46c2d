"""One sandboxed program as the runner sees it: its limits, its pipes, what it has said, and how it ended.

Imports nothing but the standard library and its neighbours; see runner.py.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Final

from triforge.sandbox.groups import Group
from triforge.sandbox.kernel import MARK, STATUS, STDERR, STDOUT, busy

START_S: Final = 30.0  # a program that has not begun by then never will
STRETCH: Final = 3  # times its limit of wall time, and START_S more, may be waited for a processor that others have
CHUNK: Final = 2**16


class Run:
    """One program, from its fork until everything of it is reaped."""

    def __init__(self, request: dict[str, Any], uid: int | None) -> None:
        self.request = request
        self.id: int = request["id"]
        self.limits: dict[str, Any] = request["limits"]
        self.uid = uid
        self.group: Group | None = None  # its control group, where it can have one
        self.monitor = 0  # pid of bubblewrap itself
        self.reaped = False
        self.init = 0  # pid of the namespace's init, 0 while unknown
        self.gone = False  # the whole namespace is gone
        self.exit_status = 0
        self.cause = ""  # why the runner killed it
        self.pipes: dict[int, int] = {}  # our end of a pipe -> STDOUT, STDERR, MARK or STATUS
        self.held = {
            STDOUT: bytearray(),
            STDERR: bytearray(),
            MARK: bytearray(),
            STATUS: bytearray(),
        }
        self.forked = time.monotonic()
        self.began = 0.0
        self.seconds = 0.0
        self.cpu_s = 0.0
        self._looked = 0.0  # when, last
        self._machine = 0.0  # for how long all processors had worked then
        self._delayed = 0.0  # and its living processes had been ready to run and had none
        self._waited = 0.0  # for a processor that others had, as far as it was seen

    def deadline(self) -> float:
        """When it is killed if it still runs. Time in which it would have run and was not let is none of its own."""
        if not self.began:
            return self.forked + START_S
        wall: float = self.limits["wall_s"]
        return self.began + wall + min(self._waited, self._patience())

    def late(self) -> str:
        """Why it is killed at its deadline: `again` when it waited for longer than anybody waits with it, but once only."""
        starved = self._waited > self._patience()
        return "again" if starved and not self.request.get("again") else "wall_time"

    def _patience(self) -> float:
        wall: float = self.limits["wall_s"]
        return STRETCH * wall + START_S

    def looked(self, now: float, used: float, delayed: float, machine: float) -> None:
        """Note what a look has shown: processor seconds so far, its own, those it was ready for and did not get, and the machine's.

        Since the look before it has waited for no longer than it got no processor, than it was ready to run (the kernel's
        count, so no state that a program can put itself in is one), and than others had the processors.
        """
        got = max(0.0, used - self.cpu_s)
        idle = now - self._looked - got
        self._waited += max(0.0, min(idle, delayed - self._delayed, machine - self._machine - got))
        self._looked, self._delayed, self._machine = now, delayed, machine
        self.cpu_s = max(self.cpu_s, used)

    def over(self) -> None:
        """Take the last count of its control group: everything of it is gone."""
        if self.group is not None:
            self.cpu_s = max(self.cpu_s, self.group.used())
            if self.group.out_of_memory():
                self.cause = self.cause or "memory"

    def kill(self, cause: str) -> None:
        """End it; the first cause counts, unless nobody waits for it any more. The monitor's pid is nobody else's: our child."""
        if not self.cause or cause == "cancelled":
            self.cause = cause
        if not self.reaped:
            os.kill(self.monitor, signal.SIGKILL)

    def read(self, fd: int) -> bool:
        """Take in what a pipe holds; False at its end. A flood is cut off and ends the run."""
        what = self.pipes[fd]
        held = self.held[what]
        try:
            part = os.read(fd, CHUNK)
        except BlockingIOError:
            return True
        if not part:
            return False
        if what == MARK and not self.began:
            self.began = self._looked = time.monotonic()
            self._machine = busy()
        held += part
        limit = self.limits["output_bytes"] if what in (STDOUT, STDERR) else CHUNK
        if len(held) > limit:
            del held[limit:]
            self.kill("output")
        if what == STATUS and not self.init:
            self.init = int(self.status().get("child-pid", 0))
        return True

    def status(self) -> dict[str, Any]:
        """What bubblewrap has said of the run so far: `child-pid`, later `exit-code`."""
        said: dict[str, Any] = {}
        for line in bytes(self.held[STATUS]).split(b"\n")[:-1]:
            said.update(json.loads(line))
        return said

    def answer(self) -> dict[str, Any]:
        """The frame that ends it."""
        if self.cause == "cancelled":
            return {"id": self.id, "error": "the caller went away"}
        if self.cause == "uncounted":
            why = "its files cannot be counted: no access to /proc/*/root (a security module, or a filter of system calls)"
            return {"id": self.id, "error": why}
        said = self.held[STDERR].decode("utf-8", "replace")
        code = self.status().get("exit-code")
        if not self.began:
            why = (
                said.strip()[-500:]
                or f"nothing began within {START_S:g} s, wait status {self.exit_status}"
            )
            return {"id": self.id, "error": why}
        ended = self.cause or "exit"
        if not self.cause:
            if code is None:
                return {"id": self.id, "error": f"bubblewrap died, wait status {self.exit_status}"}
            if code - 128 == signal.SIGXCPU or self.cpu_s > self.limits["cpu_s"]:
                ended = "cpu_time"
        result = {
            "ended": ended,
            "exit_code": code if ended == "exit" else None,
            "stdout": self.held[STDOUT].decode("utf-8", "replace"),
            "stderr": said,
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
        }
        return {"id": self.id, "result": result}
