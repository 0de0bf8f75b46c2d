"""A second deployment that belongs to a `triforge up` of its own, so that this one, too, can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from chaos.waiting import until
from triforge.config import Settings
from triforge.errors import UnavailableError
from triforge.supervisor.process import Process, ProcessSpec

_START_S = 120.0
_STOP_S = 60.0


class Owner:
    """`triforge up` as a child process, on free ports.

    Attributes:
        settings: its addresses, others after each start.
    """

    def __init__(self, config: Path, folder: Path) -> None:
        self.state = folder / "state"
        self.settings = Settings()
        self.artifacts = self.state / "artifacts"
        words = ("up", "-c", str(config), "--state", str(self.state), "--auto-ports")
        command = (sys.executable, "-m", "triforge", *words)
        self._process = Process(ProcessSpec(name="up", command=command, env={}), folder / "up.log")

    async def start(self) -> float:
        """Start it, or start it again; the seconds until everything serves.

        Raises:
            UnavailableError: it does not come up.
        """
        begun, addresses = time.monotonic(), self.state / "addresses.json"
        addresses.unlink(missing_ok=True)
        self._process.start()
        await until(lambda: addresses.is_file() or self._process.pid is None, within_s=_START_S)
        if not addresses.is_file():
            raise UnavailableError(f"triforge up does not come up: {self._process.tail()}")
        self.settings = Settings().model_copy(update=json.loads(addresses.read_text()))
        return time.monotonic() - begun

    def kill(self) -> dict[str, int]:
        """SIGKILL, to itself alone; names and process ids of those it has left alone."""
        left: dict[str, int] = json.loads((self.state / "processes.json").read_text())
        if self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGKILL)
        return left

    async def stop(self) -> None:
        await self._process.stop(_STOP_S)


async def until_gone(left: dict[str, int], *, within_s: float) -> list[str]:
    """Kill the processes that are still there after the time; return their names."""
    await until(lambda: not any(map(_lives, left.values())), within_s=within_s)
    stayed = [name for name, pid in left.items() if _lives(pid)]
    for name in stayed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(left[name], signal.SIGKILL)
    return stayed


def _lives(pid: int) -> bool:
    """Return whether a process that is not our child still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
