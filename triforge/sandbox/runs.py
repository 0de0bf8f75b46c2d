"""One sandboxed program as the runner sees it: its limits, its pipes, its output, and how it ended. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Final

from triforge.sandbox.groups import Group
from triforge.sandbox.kernel import MARK, STATUS, STDERR, STDOUT, busy

START_S: Final = 30.0  # a program that has not begun by then never will
STRETCH: Final = 3  # times the limit of wall time, plus START_S: the most time that waiting for a processor may add
CHUNK: Final = 2**16
_ERRORS: Final = {
    "cancelled": "the caller left",
    "starved": "other programs kept it from the processors; run fewer on this machine",
    "uncounted": "its files cannot be counted: no access to /proc/*/root (a security module, or a filter of system calls)",
}


class Run:
    """One program, from its fork until all of its processes are reaped."""

    def __init__(self, request: dict[str, Any], uid: int | None) -> None:
        self.id: int = request["id"]
        self.limits: dict[str, Any] = request["limits"]
        self.uid = uid
        self.group: Group | None = None  # its control group, where it can have one
        self.monitor = 0  # pid of bubblewrap itself
        self.reaped = False  # the monitor is
        self.init = 0  # pid of the namespace's init, 0 while unknown
        self.exit_status = 0
        self.cause = ""  # why the runner killed it
        self.pipes: dict[int, int] = {}  # our end of a pipe -> STDOUT, STDERR, MARK or STATUS
        self.held = {stream: bytearray() for stream in (STDOUT, STDERR, MARK, STATUS)}
        self.forked = time.monotonic()
        self.began = 0.0
        self.seconds = 0.0
        self.cpu_s = 0.0
        self._looked = 0.0  # time of the last look, and at that time
        self._machine = 0.0  # for how long all processors had worked
        self._delayed = (
            0.0  # for how long its living processes had been ready to run without a processor
        )
        self._waited = 0.0  # for how long it was seen to wait for a processor that others had

    def deadline(self) -> float:
        """Return when it is killed if it still runs. Time that it waited for a processor does not count."""
        if not self.began:
            return self.forked + START_S
        wall: float = self.limits["wall_s"]
        return self.began + wall + min(self._waited, self._patience())

    def late(self) -> str:
        """Return the cause at its deadline: `starved` if it waited too long for a processor that others had."""
        return "starved" if self._waited > self._patience() else "wall_time"

    def _patience(self) -> float:
        wall: float = self.limits["wall_s"]
        return STRETCH * wall + START_S

    def looked(self, now: float, used: float, delayed: float, machine: float) -> None:
        """Note processor seconds so far: its own, those that it was ready for and did not get, and the machine's.

        Since the last look it has waited for at most the time in which it got no processor, in which it was ready to run
        (by the kernel's count, which no state that a program chooses can raise), and in which others had the processors.
        """
        got = max(0.0, used - self.cpu_s)
        idle = now - self._looked - got
        self._waited += max(0.0, min(idle, delayed - self._delayed, machine - self._machine - got))
        self._looked, self._delayed, self._machine = now, delayed, machine
        self.cpu_s = max(self.cpu_s, used)

    def kill(self, cause: str) -> None:
        """End it; the first cause counts, unless its caller has left. The monitor is our child, so its pid is not reused."""
        if not self.cause or cause == "cancelled":
            self.cause = cause
        if not self.reaped:
            os.kill(self.monitor, signal.SIGKILL)

    def read(self, fd: int) -> bool:
        """Read what a pipe holds; return False at its end. Output above its limit is cut off and ends the run."""
        stream = self.pipes[fd]
        held = self.held[stream]
        while True:
            try:
                part = os.read(fd, CHUNK)
            except BlockingIOError:
                return True
            if not part:
                return False
            if stream == MARK and not self.began:
                self.began = self._looked = time.monotonic()
                self._machine = busy()
            held += part
            if stream == STATUS and not self.init:
                self.init = int(self._status().get("child-pid", 0))
            limit = self.limits["output_bytes"] if stream in (STDOUT, STDERR) else CHUNK
            if len(held) > limit:
                del held[limit:]
                self.kill("output")
                return True

    def _status(self) -> dict[str, Any]:
        """Return bubblewrap's report on the run: `child-pid`, later `exit-code`."""
        report: dict[str, Any] = {}
        for line in bytes(self.held[STATUS]).split(b"\n")[:-1]:
            report.update(json.loads(line))
        return report

    def response(self) -> dict[str, Any]:
        """Return the message that answers its request."""
        errors = self.held[STDERR].decode("utf-8", "replace")
        code, ended = int(self._status().get("exit-code", -1)), self.cause or "exit"
        if self.cause in _ERRORS:
            return {"id": self.id, "error": _ERRORS[self.cause]}
        if not self.began:
            why = f"nothing began within {START_S:g} s, wait status {self.exit_status}"
            return {"id": self.id, "error": errors.strip()[-500:] or why}
        if not self.cause and code < 0:
            return {"id": self.id, "error": f"bubblewrap died, wait status {self.exit_status}"}
        if not self.cause and (code - 128 == signal.SIGXCPU or self.cpu_s > self.limits["cpu_s"]):
            ended = "cpu_time"
        result = {
            "ended": ended,
            "exit_code": code if ended == "exit" else None,
            "stdout": self.held[STDOUT].decode("utf-8", "replace"),
            "stderr": errors,
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
        }
        return {"id": self.id, "result": result}
